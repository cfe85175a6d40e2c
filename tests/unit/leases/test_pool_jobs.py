"""The jobs of a pool, with a queue that gives prepared answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import BatchError, LeaseError
from headrace.leases.batch import submitting
from headrace.leases.batch.gate import Gate
from headrace.leases.batch.slurm import Slurm
from headrace.leases.pool_jobs import NodeRequest, PoolJobs, end_jobs, host_job, node_job
from headrace.leases.queued import job_spec
from headrace.recipe.site import Role
from headrace.storage.layout import LeaseFolder
from support.leases import lease_spec
from support.scripted_commands import Answer, ScriptedCommands

SILENT = Answer(None, "", "sbatch gave no answer within 60 s")
ROLE = Role(backend="slurm", nodes=4, host="job", host_options=("--mem=2G",), lifetime="1h")


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    return LeaseFolder(tmp_path / "leases" / "a-1")


class Submits(ScriptedCommands):
    """Prepared answers to submits and what follows; who asks for limits is told nothing."""

    def run(self, command: Sequence[str], text: str = "") -> Answer:
        """Answer."""
        told = command[0] in ("sbatch", "squeue", "scancel")
        return super().run(command, text) if told else Answer(1, "", "no books")


def _jobs(folder: LeaseFolder, commands: ScriptedCommands) -> PoolJobs:
    gang = job_spec(folder, lease_spec(folder, ROLE))
    spec = partial(node_job, gang, folder)
    return PoolJobs(folder, Gate(Slurm(commands), folder.path.parent, ROLE.batch), spec)


def _request(number: int) -> NodeRequest:
    return NodeRequest(number=number, time_limit_s=60.0)


def test_a_node_is_a_job_of_its_own_and_the_host_a_small_one(folder: LeaseFolder):
    role = ROLE.model_copy(
        update={
            "batch": ROLE.batch.model_copy(
                update={"gpus_per_node": 2, "exclusive": True, "exclude": ("broken",)}
            )
        }
    )
    gang = job_spec(folder, lease_spec(folder, role), python="python")
    node = node_job(gang, folder, 7, NodeRequest(number=2, time_limit_s=90.0, exclude=("bad",)))
    assert node.command == ("python", "-m", "headrace.leases.worker", str(folder.path), "2")
    assert node.exclude == ("broken", "bad")
    assert (node.name, node.nodes, node.time_limit_s) == (f"{gang.name}-7", 1, 90.0)
    assert node.log == str(folder.jobs / "000007.log")
    assert (node.gpus_per_node, node.exclusive) == (2, True)
    host = host_job(gang, role)
    assert host.command == ("python", "-m", "headrace.leases.host", str(folder.path))
    assert (host.name, host.nodes, host.cpus_per_node) == (gang.name, 1, 1)
    assert (host.gpus_per_node, host.exclusive, host.options) == (0, False, ("--mem=2G",))


def test_each_job_has_its_own_name_and_a_record_until_it_has_ended(folder: LeaseFolder):
    jobs = _jobs(folder, Submits(Answer(0, "11\n", ""), Answer(0, "12\n", "")))
    first, second = jobs.submit(_request(0)), jobs.submit(_request(3))
    assert [each.record.job_id for each in (first, second)] == ["11", "12"]
    assert first.record.name != second.record.name
    assert second.number == 3
    assert len(list(folder.jobs.glob("*.json"))) == 2
    jobs.forget(first)
    assert [file.name for file in folder.jobs.glob("*.json")] == ["000002.json"]
    jobs.stop()
    with pytest.raises(LeaseError, match="closing"):
        jobs.submit(_request(0))


def test_after_an_unclear_submit_the_same_job_is_asked_for_again(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch
):
    """pains 17: for another node it would be a second job."""
    monkeypatch.setattr(submitting, "_ATTEMPTS", 1)
    monkeypatch.setattr(submitting.time, "sleep", lambda _seconds: None)
    name = job_spec(folder, lease_spec(folder, ROLE)).name + "-1"
    nothing, there = Answer(0, "", ""), Answer(0, f"11|PENDING|N/A||Priority|{name}\n", "")
    commands = Submits(SILENT, nothing, there)
    jobs = _jobs(folder, commands)
    with pytest.raises(BatchError):
        jobs.submit(_request(2))
    found = jobs.submit(_request(0))
    assert (found.number, found.record.job_id) == (2, "11")
    assert sum(command[0] == "sbatch" for command in commands.seen) == 1


def test_jobs_of_a_killed_host_are_found_by_records_and_by_name(folder: LeaseFolder):
    """pains 22."""
    jobs = _jobs(folder, Submits(Answer(0, "11\n", "")))
    jobs.submit(_request(0))
    (folder.jobs / "000002.submitting").write_text("the-second")
    running = "11|RUNNING|N/A||None|a\n12|PENDING|N/A||Priority|the-second\n"
    gone = running.replace("RUNNING", "CANCELLED").replace("PENDING", "CANCELLED")
    commands = ScriptedCommands(
        Answer(0, running.splitlines()[1], ""),  # by name
        Answer(0, running, ""),
        Answer(0, "", ""),  # scancel
        Answer(0, gone, ""),
    )
    assert end_jobs(Slurm(commands), folder, 0.0) == 2
    assert [each for each in commands.seen if each[0] == "scancel"] == [
        ("scancel", "--quiet", "11", "12")
    ]
    assert not list(folder.jobs.glob("*.json")) + list(folder.jobs.glob("*.submitting"))
    assert end_jobs(Slurm(commands), folder, 0.0) == 0


def test_a_job_that_nobody_recorded_is_found_by_its_name(folder: LeaseFolder):
    """pains 17: its submitter died between the two."""
    folder.path.mkdir(parents=True)
    slurm = Slurm(ScriptedCommands(Answer(0, "12|PENDING|N/A||Priority|a\n", "")))
    assert submitting.recovered(slurm, "a", folder.job) is None
    submitting.intent_of(folder.job).write_text("a")
    for _ in range(2):
        assert submitting.recovered(slurm, "a", folder.job).job_id == "12"
        assert not submitting.intent_of(folder.job).exists()


def test_the_last_words_of_a_job_are_those_of_its_log(folder: LeaseFolder):
    jobs = _jobs(folder, Submits(Answer(0, "11\n", "")))
    job = jobs.submit(_request(0))
    assert jobs.last_words(job) == ""
    (folder.jobs / "000001.log.queue").write_text("can't open the log: disk quota exceeded\n")
    assert jobs.last_words(job) == "can't open the log: disk quota exceeded"
    jobs.log_of(job).write_text("".join(f"line {number}\n" for number in range(9)))
    assert jobs.last_words(job).splitlines() == [f"line {number}" for number in range(4, 9)]
