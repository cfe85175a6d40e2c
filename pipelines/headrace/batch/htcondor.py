"""HTCondor, for pools: its commands' answers as records. Never run against a real one.

Sources: condor_submit, condor_q, condor_history, condor_rm and "Job ClassAd Attributes" of the
HTCondor manual; dask_jobqueue/htcondor.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from headrace.batch.jobs import JobSpec, JobState, JobStatus, ended_on
from headrace.batch.system import BatchSystem, by_id, render

_ATTRIBUTES = (
    "ClusterId,JobStatus,RemoteHost,LastRemoteHost,HoldReason,HoldReasonCode,RemoveReason,ExitCode,"
    "ExitBySignal,RemoteWallClockTime,HeadraceTimeLimit"
)

_REMOVED, _COMPLETED, _HELD = 3, 4, 5
_STATES = {
    1: JobState.PENDING,
    2: JobState.RUNNING,
    _HELD: JobState.PENDING,
    6: JobState.RUNNING,
    7: JobState.RUNNING,
}
"""Source: "Job ClassAd Attributes", JobStatus."""

_ESCAPES = str.maketrans({"\n": r"\n", "\\": r"\\", "$": r"\x24", "'": r"\x27", '"': r"\x22"})

_HELD_BY_HAND = (1, 15, 16)
"""Values of HoldReasonCode of jobs that go on: condor_hold, held at submit, spooling."""


class HTCondor(BatchSystem):
    """HTCondor through its commands; a job is a cluster of one process."""

    name = "HTCondor"
    template = "htcondor"
    config_variable = "CONDOR_CONFIG"
    job_variable = "HEADRACE_CONDOR_ID"
    job_variables = ("HEADRACE_CONDOR_ID", "_CONDOR_JOB", "_CONDOR_SCRATCH")
    books_pause_s = 30.0
    show = "condor_q -long "
    submit_command = ("condor_submit", "-terse")
    submitted = re.compile(r"^(?P<id>\d+)\.\d+ - \d+\.\d+\s*\Z", re.MULTILINE)
    cancel_command = ("condor_rm",)
    unclear = re.compile(
        r"failed to (connect|fetch|commit)|can't (find address|connect)|timed? ?out|communication"
        r"|failed to send",
        re.IGNORECASE,
    )
    full = re.compile(r"MAX_JOBS_(PER_OWNER|SUBMITTED)|maximum.*jobs", re.IGNORECASE)
    nothing = re.compile(r"couldn't find/remove|not found", re.IGNORECASE)
    hint = "`condor_status` lists the machines, `condor_submit -dry-run` tells what is asked for."
    silent = "Is the schedd up? `batch.config` must name the condor_config of this pool."
    programs = ("condor_submit", "condor_q", "condor_history", "condor_rm")
    version_option = "-version"

    @override
    def render(self, spec: JobSpec) -> str:
        script = render("job", spec)
        # bash's `$'…'`: one line, no quotes and no macros of HTCondor
        one_line = f"eval $'{script.translate(_ESCAPES)}'"
        return render(self.template, spec, command=one_line)

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return self._jobs("condor_q", *job_ids) if job_ids else {}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return self._jobs("condor_history", *job_ids) if job_ids else {}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        which = ("-constraint", f"JobBatchName == {json.dumps(name)}")
        living = self._jobs(
            "condor_q", *which
        )  # first: one that ends meanwhile would be in neither
        return by_id(list((self._jobs("condor_history", *which) | living).values()))

    def _jobs(self, program: str, *which: str) -> dict[str, JobStatus]:
        found = self._ask_json(program, "-json", "-attributes", _ATTRIBUTES, *which)
        return {each.job_id: each for each in map(parse_job, found or [])}


def parse_job(job: Mapping[str, Any]) -> JobStatus:
    """A job of `condor_q -json` or `condor_history -json`."""
    job_id, status = str(job["ClusterId"]), job["JobStatus"]
    host = str(job.get("RemoteHost") or job.get("LastRemoteHost") or "").rpartition("@")[2]
    nodes = (host,) if host else ()
    if status in (_REMOVED, _COMPLETED):
        state = _end_of_removed(job) if status == _REMOVED else _end_of_completed(job)
        reason = job.get("RemoveReason") or f"exit code {job.get('ExitCode', 'unknown')}"
        why = "" if state is JobState.COMPLETED else str(reason)
        return ended_on(nodes, JobStatus(job_id=job_id, state=state, reason=why))
    # a state of a later HTCondor is no proof of an end
    state = _STATES.get(status, JobState.RUNNING)
    return JobStatus(
        job_id=job_id,
        state=state,
        reason=str(job.get("HoldReason", "")) if status == _HELD else "",
        nodes=nodes if state is JobState.RUNNING else (),
        never_starts=status == _HELD and job.get("HoldReasonCode") not in _HELD_BY_HAND,
    )


def _end_of_completed(job: Mapping[str, Any]) -> JobState:
    is_good = not job.get("ExitBySignal") and job.get("ExitCode") == 0
    return JobState.COMPLETED if is_good else JobState.FAILED


def _end_of_removed(job: Mapping[str, Any]) -> JobState:
    """By hand, or by the `periodic_remove` of the job: its time is over, or its node was lost."""
    if "PeriodicRemove" not in str(job.get("RemoveReason", "")):
        return JobState.CANCELLED
    limit_s = job.get("HeadraceTimeLimit")
    is_over = limit_s is not None and job.get("RemoteWallClockTime", 0) >= limit_s
    return JobState.TIMED_OUT if is_over else JobState.PREEMPTED
