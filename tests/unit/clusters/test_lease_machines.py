"""The jobs of leases: their scripts, one submission of each, their ends and causes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from distributed.core import Status

from headrace.batch import submission_gate
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.queue_state import JobRecord, intent_of
from headrace.batch.slurm import Slurm
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters import lease_machines
from headrace.clusters.lease_machines import (
    NodeRequest,
    end_node_jobs,
    host_job,
    job_spec,
    last_words,
    log_file,
    node_job,
    overdue,
    record_file,
)
from headrace.clusters.pool_job import PoolJob
from headrace.errors import BatchError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import FailureClass
from support.job_scripts import assert_dask_jobqueue_shows_the_script
from support.leases import lease_spec
from support.pool_nodes import pool_job
from support.scripted_commands import CommandResult, ScriptedCommands, SmallSlurm

LEFT_S = 100.0 + 15.0  # start_timeout and lost_after


@pytest.mark.parametrize(
    ("state", "log", "why"),
    [
        ("FAILED", "error: x: No such file or directory\n", "No such file or directory"),
        ("FAILED", "", "ended: failed"),
        ("PREEMPTED", "error: x: No such file or directory\n", "ended: preempted"),
    ],
)
def test_a_failed_job_tells_what_its_log_lacks(
    tmp_path: Path, state: str, log: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SmallSlurm()
    slurm.jobs["7"] = state
    monkeypatch.setattr(lease_machines, "system_of", lambda _: Slurm(slurm))
    folder = SiteFolder(tmp_path).lease("demo-1")
    write_record(folder.job, JobRecord(job_id="7", name="x", submitted_at=0.0))
    folder.log.write_text(log)
    found = lease_machines.cause(folder, lease_spec(folder, Role(backend="slurm")))
    assert found.why.endswith(why)


@pytest.mark.parametrize(
    ("since", "now", "has_host", "is_overdue"),
    [
        (1000.0, 1000.0 + LEFT_S, False, True),
        (100.0, 300.0, False, True),
        (1000.0, 999.0 + LEFT_S, False, False),
        (1000.0, 1000.0 + LEFT_S, True, False),
        (None, 1000.0 + LEFT_S, False, False),
    ],
)
def test_a_job_whose_host_never_reports(
    tmp_path: Path, since: float | None, now: float, has_host: bool, is_overdue: bool
) -> None:
    folder = SiteFolder(tmp_path).lease("demo-1")
    if has_host:
        write_text(folder.host, "{}")
    spec = lease_spec(folder, Role(start_timeout=100.0))
    status = JobStatus(
        job_id="7", state=JobState.RUNNING, running_since=since, nodes=("n1", "n2"), seen_at=now
    )
    found = overdue(status, folder, spec, "Slurm")
    assert (found is not None) == is_overdue
    if found is not None:
        assert found.why.startswith("Slurm job 7 has been running on n1, n2 for more than 115 s")
        assert (found.failure_class, found.bad_nodes) == (FailureClass.INFRASTRUCTURE, ("n1",))


SILENT = CommandResult(None, "", "sbatch gave no answer within 60 s")
ROLE = Role.model_validate(
    {
        **{"backend": "slurm", "nodes": 4, "host": "job", "host_options": ["--mem=2G"]},
        **{"lifetime": "1h", "batch": {"python": "python"}},
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    return LeaseFolder(tmp_path / "leases" / "a-1")


class Submits(ScriptedCommands):
    """Prepared answers to submits and what follows; who asks for limits is told nothing."""

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """CommandResult."""
        told = command[0] in ("sbatch", "squeue", "scancel")
        return super().run(command, text) if told else CommandResult(1, "", "no books")


def _submit(folder: LeaseFolder, commands: ScriptedCommands, serial: int, number: int) -> JobRecord:
    gate = SubmissionGate(Slurm(commands), folder.path.parent, ROLE.batch)
    return gate.submit(_node(folder, serial, number), record_file(folder, serial))


def _node(folder: LeaseFolder, serial: int = 1, number: int = 0) -> JobSpec:
    return node_job(folder, lease_spec(folder, ROLE), _request(serial, number))


def _request(serial: int = 1, number: int = 0) -> NodeRequest:
    return NodeRequest(serial=serial, number=number, time_limit_s=90.0, exclude=("bad",))


def test_a_node_is_a_job_of_its_own_and_the_host_a_small_one(folder: LeaseFolder):
    role = ROLE.model_copy(
        update={
            "batch": ROLE.batch.model_copy(
                update={"gpus_per_node": 2, "exclusive": True, "exclude": ("broken",)}
            )
        }
    )
    spec = lease_spec(folder, role)
    gang, node = job_spec(folder, spec), node_job(folder, spec, _request(serial=7, number=2))
    assert node.command == ("python", "-m", "headrace.clusters.worker", str(folder.path), "2")
    assert node.exclude == ("broken", "bad")
    assert (node.name, node.nodes, node.time_limit_s) == (f"{gang.name}-7", 1, 90.0)
    assert node.log == str(folder.jobs / "000007.log")
    assert (node.gpus_per_node, node.exclusive) == (2, True)
    host = host_job(folder, spec)
    assert host.command == ("python", "-m", "headrace.clusters.host", str(folder.path))
    assert (host.name, host.nodes, host.cpus_per_node) == (gang.name, 1, 1)
    assert (host.gpus_per_node, host.exclusive, host.options) == (0, False, ("--mem=2G",))


def test_dask_jobqueue_shows_the_script_that_the_queue_gets(folder: LeaseFolder):
    assert_dask_jobqueue_shows_the_script(Slurm, folder)


def test_what_dask_wants_is_only_noted():
    """No queue is asked under the lock of SpecCluster."""
    job = pool_job()
    asyncio.run(_awaited(job))
    assert job.status is Status.closed
    assert job.job_id == "7"


async def _awaited(job: PoolJob) -> None:
    await job
    assert job.status is Status.running
    await job.close()


def test_each_job_has_its_own_name_and_a_record_until_it_has_ended(folder: LeaseFolder):
    commands = Submits(CommandResult(0, "11\n", ""), CommandResult(0, "12\n", ""))
    records = [_submit(folder, commands, serial, 0) for serial in (1, 2)]
    assert [each.job_id for each in records] == ["11", "12"]
    assert records[0].name != records[1].name
    assert len(list(folder.jobs.glob("*.json"))) == 2


def test_after_an_unclear_submit_the_same_job_is_asked_for_again(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch
):
    """pains 17: for another node it would be a second job."""
    monkeypatch.setattr(submission_gate, "_ATTEMPTS", 1)
    monkeypatch.setattr(submission_gate.time, "sleep", lambda _seconds: None)
    name = job_spec(folder, lease_spec(folder, ROLE)).name + "-1"
    nothing, there = (
        CommandResult(0, "", ""),
        CommandResult(0, f"11|PENDING|N/A||Priority|{name}\n", ""),
    )
    commands = Submits(SILENT, nothing, there)
    with pytest.raises(BatchError):
        _submit(folder, commands, 1, 2)
    assert _submit(folder, commands, 1, 2).job_id == "11"
    assert sum(command[0] == "sbatch" for command in commands.seen) == 1


def test_jobs_of_a_killed_host_are_found_by_records_and_by_name(folder: LeaseFolder):
    """pains 22."""
    _submit(folder, Submits(CommandResult(0, "11\n", "")), 1, 0)
    (folder.jobs / "000002.submitting").write_text("the-second")
    running = "11|RUNNING|N/A||None|a\n12|PENDING|N/A||Priority|the-second\n"
    gone = running.replace("RUNNING", "CANCELLED").replace("PENDING", "CANCELLED")
    commands = ScriptedCommands(
        CommandResult(0, running.splitlines()[1], ""),  # by name
        CommandResult(0, running, ""),
        CommandResult(0, "", ""),  # scancel
        CommandResult(0, gone, ""),
    )
    assert end_node_jobs(Slurm(commands), folder, 0.0) == 2
    assert [each for each in commands.seen if each[0] == "scancel"] == [
        ("scancel", "--quiet", "11", "12")
    ]
    assert not list(folder.jobs.glob("*.json")) + list(folder.jobs.glob("*.submitting"))
    assert end_node_jobs(Slurm(commands), folder, 0.0) == 0


def test_a_job_that_nobody_recorded_is_found_by_its_name(folder: LeaseFolder):
    """pains 17: its submitter died between the two."""
    folder.path.mkdir(parents=True)
    slurm = Slurm(ScriptedCommands(CommandResult(0, "12|PENDING|N/A||Priority|a\n", "")))
    assert submission_gate.recovered(slurm, "a", folder.job) is None
    intent_of(folder.job).write_text("a")
    for _ in range(2):
        assert submission_gate.recovered(slurm, "a", folder.job).job_id == "12"
        assert not intent_of(folder.job).exists()


def test_the_last_words_of_a_job_are_those_of_its_log(folder: LeaseFolder):
    assert last_words(folder, 1) == ""
    folder.jobs.mkdir(parents=True)
    (folder.jobs / "000001.log.queue").write_text("can't open the log: disk quota exceeded\n")
    assert last_words(folder, 1) == "can't open the log: disk quota exceeded"
    log_file(folder, 1).write_text("".join(f"line {number}\n" for number in range(9)))
    assert last_words(folder, 1).splitlines() == [f"line {number}" for number in range(4, 9)]
