"""OAR, for pools: its commands' answers as records. Never run against a real one.

Sources: oarsub, oarstat (`-J -f`, `--sql`) and oardel of the OAR 2.5 manual, its wiki page
"oarstat vs REST API"; dask_jobqueue/oar.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from headrace.batch.jobs import JobSpec, JobState, JobStatus, ended_on
from headrace.batch.system import BatchSystem, by_id

_STATES = {
    **dict.fromkeys(("Waiting", "Hold", "toLaunch", "toAckReservation"), JobState.PENDING),
    "Launching": JobState.PENDING,
    "Terminated": JobState.COMPLETED,
    "Error": JobState.FAILED,
}
"""Source: oarstat, "state"; all others run."""

_EVENTS = {
    "WALLTIME": JobState.TIMED_OUT,
    "BESTEFFORT_KILL": JobState.PREEMPTED,
    "FRAG_JOB_REQUEST": JobState.CANCELLED,
}
"""Events of a job that was ended, the most telling first."""

_DIRECTIVE = "#OAR "


class Oar(BatchSystem):
    """OAR through its commands."""

    name = "OAR"
    template = "oar"
    config_variable = "OARCONFFILE"
    job_variable = "OAR_JOB_ID"
    job_variables = ("OAR_",)
    show = "oarstat -f -j "
    submit_command = ("oarsub",)
    submitted = re.compile(r"^OAR_JOB_ID=(?P<id>\d+)\s*$", re.MULTILINE)
    cancel_command = ("oardel",)
    unclear = re.compile(r"can ?not connect|connection refused|timed? ?out|DBI", re.IGNORECASE)
    full = re.compile(r"too many jobs|maximum number of (waiting )?jobs", re.IGNORECASE)
    nothing = re.compile(r"already (been )?(killed|finished|terminated)|does not exist|no job")
    hint = "`oarnodes` lists the nodes, `oarstat --gantt` the queues."
    silent = "Is the OAR server up?"
    programs = ("oarsub", "oarstat", "oardel")
    version_option = "-V"

    @override
    def submit(self, spec: JobSpec) -> str:
        return self._submit(spec, (*self.submit_command, *as_command(self.render(spec))))

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return self._jobs(f"job_id IN ({','.join(job_ids)})") if job_ids else {}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return by_id(list(self._jobs(f"job_name = '{name}'").values()))

    def _jobs(self, where: str) -> dict[str, JobStatus]:
        found = self._ask_json("oarstat", "-J", "-f", "--sql", where) or {}
        return {job_id: parse_job(job_id, job) for job_id, job in found.items()}


def as_command(script: str) -> tuple[str, ...]:
    """The arguments of `oarsub` for a job: the node has no script, so its text is the command."""
    directives = [line for line in script.splitlines() if line.startswith(_DIRECTIVE)]
    options = [word for each in directives for word in shlex.split(each.removeprefix(_DIRECTIVE))]
    return (*options, f"/bin/bash -c {shlex.quote(script)}")


def parse_job(job_id: str, job: Mapping[str, Any]) -> JobStatus:
    """A job of `oarstat -J -f`."""
    # a state of a later OAR is no proof of an end
    state = _STATES.get(str(job.get("state")), JobState.RUNNING)
    message = str(job.get("message") or "")
    nodes = tuple(job.get("assigned_network_address") or ())
    if not state.is_final:
        start = job.get("scheduledStart")
        pending = state is JobState.PENDING
        return JobStatus(
            job_id=job_id,
            state=state,
            reason=message if pending else "",
            starts_at=float(start) if pending and start else None,
            nodes=() if pending else nodes,
        )
    code = int(job.get("exit_code") or 0)
    told = json.dumps(job.get("events") or [])
    state = next((end for name, end in _EVENTS.items() if name in told), state)
    if state is JobState.COMPLETED and code:
        state, message = JobState.FAILED, f"exit code {code >> 8}"  # as of wait(2)
    return ended_on(nodes, JobStatus(job_id=job_id, state=state, reason=message))
