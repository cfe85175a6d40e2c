"""Machines without a queue: a job is a detached process on the first of some SSH hosts.

The job's state is on the first host, in `~/.headrace/ssh-jobs/NAME`: its script, the process and,
at the end, the exit code. On all hosts, the job's processes are found by `HEADRACE_JOB_ID` in
their environment. The hosts run Linux.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from typing_extensions import override

from headrace.batch.commands import Commands
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.ssh import SshCommands
from headrace.batch.system import BatchSystem, render, shell
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.recipe.backend import QUEUE_KEYS
from headrace.recipe.batch import Login
from headrace.recipe.site import Role

JOB = "HEADRACE_JOB_ID"
"""Environment variable of all processes of a job: its name."""

_OF_SSH = "255"  # exit code of ssh when the connection fails


def commands_of_hosts(role: Role) -> dict[str, Commands]:
    """Return command runners by host, for a role without a queue."""
    return {each.host: SshCommands(each, {}) for each in role.batch.hosts}


class SshHosts(BatchSystem):
    """Hosts instead of a batch system; other users may use them too.

    A job uses the first hosts, one for each of its nodes. Each host has its own `Commands`.
    """

    lacks = dict.fromkeys(QUEUE_KEYS, "there is no queue")
    kinds = ("gang",)
    has_queue = False
    shares_machines = True
    takes_hosts = True

    name = "SSH"
    config_variable = ""
    job_variable = JOB
    job_variables = (JOB,)
    show = "ls ~/.headrace/ssh-jobs/"

    def __init__(self, hosts: Sequence[Login], commands: Mapping[str, Commands]) -> None:
        self._hosts = tuple(hosts)
        self._commands_of = dict(commands)
        self._first = self._commands_of[hosts[0].host]
        super().__init__(self._first, f"ssh {hosts[0].host}:{hosts[0].port or ''}")

    @classmethod
    @override
    def check_role(cls, role: Role) -> None:
        names = {each.host for each in role.batch.hosts}
        if role.kind == "gang" and len(names) < role.nodes:
            raise ValueError(
                f"{role.nodes} nodes need as many different `batch.hosts`; there are {len(names)}"
            )

    @classmethod
    @override
    def connect(cls, role: Role, timeout_s: float) -> SshHosts:
        del timeout_s
        return cls(role.batch.hosts, commands_of_hosts(role))

    @override
    def render(self, spec: JobSpec) -> str:
        used = self._hosts[: spec.nodes]
        ways = [shlex.join(way_to(host)) for host in used]
        return render("ssh", spec, hosts=[host.host for host in used], ways=ways)

    @override
    def submit(self, spec: JobSpec) -> str:
        limit = f"{spec.time_limit_s:.0f}"
        start = ("sh", "-c", shell("ssh_start"), "sh", spec.name, limit)
        answer = self._first.run(start, self.render(spec))
        if answer.code == 0 and answer.output.strip() == spec.name:
            return spec.name
        if answer.code in (0, None):
            raise AmbiguousSubmitError(f"No clear answer for {spec.name}: {answer.words}")
        raise JobRefusedError(
            f"{self._hosts[0].host} cannot start {spec.name}: {answer.words}",
            "It needs Linux with sh, bash, setsid and timeout, and a home folder to write to.",
        )

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        answer = self._first.run(("sh", "-c", shell("ssh_poll"), "sh", *job_ids))
        if answer.code != 0:
            raise BatchError(f"{self._hosts[0].host} does not answer: {answer.words}")
        found = [_status(*line.split()) for line in answer.output.splitlines()]
        return {each.job_id: each for each in found}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return tuple(self.poll([name]).values())

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        silent = []
        for host, commands in self._commands_of.items() if job_ids else ():
            try:
                answer = commands.run(("sh", "-c", shell("ssh_cancel"), "sh", *job_ids))
            except BatchError as error:
                silent.append(error.what)
                continue
            if answer.code != 0:
                silent.append(f"{host} does not answer: {answer.words}")
        if silent:
            raise BatchError("; ".join(silent))


def way_to(host: Login) -> tuple[str, ...]:
    """Return the ssh command prefix that reaches a host from the first host."""
    given = [part for option in host.options for part in ("-o", option)]
    port = ["-p", str(host.port)] if host.port else []
    identity = ["-i", host.identity] if host.identity else []
    fixed = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-T"]
    return ("ssh", *fixed, *given, *port, *identity, host.host)


def _status(name: str, word: str, code: str) -> JobStatus:
    state, reason = {
        "running": (JobState.RUNNING, ""),
        "cancelled": (JobState.CANCELLED, ""),
        "gone": (JobState.NODE_FAILED, "its process is gone: killed, or the host was restarted"),
        "ended": (JobState.FAILED, f"exit code {code}"),
    }[word]
    if word == "ended" and code in ("0", "124"):
        state = JobState.COMPLETED if code == "0" else JobState.TIMED_OUT
    if word == "ended" and code == _OF_SSH:
        state = JobState.NODE_FAILED
        reason = "a host, or the connection to it from the first, is gone"
    return JobStatus(job_id=name, state=state, reason=reason if state.is_final else "")
