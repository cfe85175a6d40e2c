"""Jobs on hosts without a queue, with this machine as every host."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.commands import CommandResult, LocalCommands
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.ssh_hosts import SshHosts
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.recipe.batch import Login
from headrace.recipe.site import Role
from support.scripted_commands import ScriptedCommands
from support.waiting import wait_until

HOSTS = (Login(host="dgx1"), Login(host="me@dgx2", port=2222, identity="/keys/lab"))


@pytest.fixture
def system(tmp_path: Path) -> SshHosts:
    here = LocalCommands({"HOME": str(tmp_path)})
    return SshHosts(HOSTS, {each.host: here for each in HOSTS})


@pytest.mark.parametrize(
    ("command", "limit_s", "state"),
    [
        ("true", 60.0, JobState.COMPLETED),
        ("exit 3", 60.0, JobState.FAILED),
        ("exit 255", 60.0, JobState.NODE_FAILED),
        ("sleep 60", 1.0, JobState.TIMED_OUT),
    ],
)
def test_how_a_job_ended(
    system: SshHosts, tmp_path: Path, command: str, limit_s: float, state: JobState
):
    spec = _spec(tmp_path, command=("sh", "-c", command), time_limit_s=limit_s)
    system.submit(spec)
    assert wait_until(lambda: _ended(system, spec.name), 60, "the end").state is state


def test_a_job_that_ends_while_it_is_looked_at_has_ended(tmp_path: Path):
    """Its process is gone, though a moment ago there was no exit code."""
    job, programs = tmp_path / ".headrace" / "ssh-jobs" / "headrace-1", tmp_path / "bin"
    job.mkdir(parents=True)
    (job / "process").write_text("999999999 1\n")
    programs.mkdir()
    (programs / "cut").write_text(f"#!/bin/sh\necho 0 > {job}/code\nexit 1\n")
    (programs / "cut").chmod(0o700)
    path = f"{programs}:{os.environ['PATH']}"
    here = LocalCommands({"HOME": str(tmp_path), "PATH": path})
    system = SshHosts(HOSTS, {each.host: here for each in HOSTS})
    assert system.poll([job.name])[job.name].state is JobState.COMPLETED


def test_a_second_submit_starts_nothing(system: SshHosts, tmp_path: Path):
    """pains 17."""
    spec = _spec(tmp_path, command=("sh", "-c", "echo once >> seen; exec sleep 60"))
    assert [system.submit(spec), system.submit(spec)] == [spec.name] * 2
    wait_until((tmp_path / "seen").exists, 60, "the job to run")
    assert system.poll([spec.name, "nobody"])[spec.name].state is JobState.RUNNING
    system.cancel([spec.name])
    assert [each.state for each in system.find(spec.name)] == [JobState.CANCELLED]
    assert (tmp_path / "seen").read_text() == "once\n"


def test_half_a_script_starts_nothing(system: SshHosts, tmp_path: Path):
    """pains 17: the connection was lost on the way."""
    spec = _spec(tmp_path)
    whole = system.render
    system.render = lambda spec: whole(spec)[:-20]  # type: ignore[method-assign]
    with pytest.raises(JobRefusedError):
        system.submit(spec)
    assert system.find(spec.name) == ()


def test_no_answer_is_no_refusal(tmp_path: Path):
    silent = ScriptedCommands(CommandResult(None, "", "the connection to dgx1 was lost"))
    with pytest.raises(AmbiguousSubmitError):
        SshHosts(HOSTS, {"dgx1": silent}).submit(_spec(tmp_path))


def test_a_host_that_does_not_answer_keeps_no_other_from_ending_its_job():
    class Gone(ScriptedCommands):
        def run(self, command: Sequence[str], text: str = "") -> CommandResult:
            super().run(command)
            raise BatchError("dgx1 cannot be reached")

    answer = CommandResult(255, "", "no route")
    hosts = {"dgx1": Gone(answer), "dgx2": ScriptedCommands(answer)}
    with pytest.raises(BatchError, match=r"^dgx1 cannot be reached; dgx2 does not answer: no rou"):
        SshHosts(HOSTS, hosts).cancel(["7"])
    assert [len(each.seen) for each in hosts.values()] == [1, 1]


def test_further_hosts_are_reached_from_the_first(system: SshHosts, tmp_path: Path):
    text = system.render(_spec(tmp_path, nodes=2))
    assert "<(printf '%s\\n' dgx1 me@dgx2)" in text
    assert (
        "case $i in 1) set -- ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -T "
        "-p 2222 -i /keys/lab me@dgx2 ;; esac;"
    ) in text


@pytest.mark.parametrize(
    ("backend", "batch", "told"),
    [
        ("ssh", {"hosts": ["a"]}, "2 nodes need as many different `batch.hosts`; there are 1"),
        ("ssh", {"hosts": ["a", "b"], "partition": "gpu"}, "there is no queue"),
        ("slurm", {"hosts": ["a", "b"]}, "`batch.hosts` is for backend 'ssh'"),
    ],
)
def test_what_a_site_cannot_say(backend: str, batch: dict[str, Any], told: str):
    with pytest.raises(ValidationError) as caught:
        Role(backend=backend, kind="gang", nodes=2, batch=batch)
    assert told in str(caught.value)


def _spec(folder: Path, **changes: Any) -> JobSpec:
    given = {
        "name": f"headrace-{uuid.uuid4().hex[:12]}",
        "command": ("true",),
        "nodes": 1,
        "cpus_per_node": 1,
        "time_limit_s": 60.0,
        "folder": str(folder),
        "log": str(folder / "log"),
    }
    return JobSpec(**{**given, **changes})


def _ended(system: SshHosts, name: str) -> JobStatus | None:
    seen = system.poll([name])[name]
    return seen if seen.state.is_final else None
