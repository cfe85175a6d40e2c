"""What all batch systems have in common, as PBS, Grid Engine and LSF do it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobSpec, JobState
from headrace.batch.queue_state import JobRecord, current_status, job_status
from headrace.errors import BatchError, LoginError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace_queues.lsf import Lsf
from headrace_queues.pbs import Pbs
from headrace_queues.sge import Sge
from support.job_scripts import assert_dask_jobqueue_shows_the_script
from support.scripted_commands import ScriptedCommands


class Forgetful:
    """A Grid Engine whose jobs have left the queue; its books are one large file."""

    def __init__(self) -> None:
        self.books: list[str] = []  # ids
        self.looks: list[tuple[str, ...]] = []

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Answer as that command would."""
        del text
        if command[0] == "qstat":
            return CommandResult(0, "<job_info><queue_info/><job_info/></job_info>", "")
        if command[0] == "id":
            return CommandResult(0, "me\n", "")
        self.looks.append(tuple(command))
        block = "======\nhostname     n1\njobnumber    {}\nfailed       0\nexit_status  0\n"
        found = "".join(block.format(job_id) for job_id in self.books)
        return (
            CommandResult(0, found, "")
            if found
            else CommandResult(1, "", "error: job id 1 not found")
        )


def test_books_that_are_one_large_file_are_seldom_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 17: a job that was cancelled before it started never comes into them."""
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    commands = Forgetful()
    records = []
    for job_id in ("1", "2", "3"):
        (tmp_path / job_id).mkdir()
        records.append(JobRecord(job_id=job_id, name=job_id, submitted_at=clock[0]))
        write_record(tmp_path / job_id / "job.json", records[-1])
    while clock[0] < 1600.0:
        seen = [job_status(Sge(commands), tmp_path, each, 10.0).state for each in records]
        if clock[0] == 1005.0:
            commands.books = ["2"]
        clock[0] += 5.0
    assert seen == [JobState.UNKNOWN, JobState.COMPLETED, JobState.UNKNOWN]
    assert len(commands.looks) == 4  # at 0, 30 and 60 s, and when the two are given up


def test_books_are_asked_for_one_job_by_its_id():
    """The answer does not grow with what the user ran before, nor is it asked for twice."""
    commands = Forgetful()
    commands.books = ["7"]
    seen = current_status(Sge(commands), JobRecord(job_id="7", name="a", submitted_at=0.0))
    assert (seen.state, seen.is_from_books) == (JobState.COMPLETED, True)
    assert commands.looks == [("qacct", "-o", "me", "-d", "30", "-j", "7")]


def test_an_answer_that_is_an_error_comes_with_what_may_be_wrong():
    with pytest.raises(BatchError, match="PBS does not answer qstat: down") as caught:
        Pbs(ScriptedCommands(CommandResult(1, "", "down"))).poll(["1"])
    assert "Is the server up?" in caught.value.hint


def test_the_version_is_that_of_the_first_program_that_tells_one():
    answers = (
        CommandResult(0, "", "\n"),
        CommandResult(0, "", " v 2\nmore"),
        CommandResult(0, "3", ""),
    )
    commands = ScriptedCommands(*answers)
    found = next(Lsf(commands).check(_JOB))
    assert (found.grade.value, found.seen) == ("ok", "bsub, bjobs, bkill, bacct, bqueues: v 2")
    assert commands.seen[:2] == [("bsub", "-V"), ("bjobs", "-V")]


class _Missing:
    """No program is there, or the login node is not."""

    def __init__(self, error: BatchError) -> None:
        self.error = error

    def run(self, command: object, text: str = "") -> CommandResult:
        raise self.error


def test_each_program_that_is_not_there_is_told():
    found = list(Pbs(_Missing(BatchError("no such program", ""))).check(_JOB))
    assert [(each.grade.value, each.seen) for each in found] == [("fail", "no such program")] * 4
    assert "put them on PATH" in found[0].advice
    broken = ScriptedCommands(CommandResult(1, "", "broken"), CommandResult(0, "1", ""))
    (failed,) = Pbs(broken).check(_JOB)
    assert (failed.grade.value, failed.seen) == ("fail", "qsub: broken")


def test_without_its_login_node_nothing_is_said_of_any():
    with pytest.raises(LoginError):
        list(Pbs(_Missing(LoginError("no way there", ""))).check(_JOB))


_JOB = JobSpec(
    name="a", command=("true",), nodes=1, cpus_per_node=1, time_limit_s=60, folder="/", log="/log"
)


def test_a_job_that_ends_while_it_is_looked_for_by_name_is_found() -> None:
    """pains 6: it leaves the queue before it comes into the books; it would be submitted again."""
    asked: list[str] = []

    class Empty:
        def run(self, command: Sequence[str], text: str = "") -> CommandResult:
            del text
            asked.append(command[0])
            return CommandResult(0, "<a/>" if command[0] == "qstat" else "", "")

    assert Sge(Empty()).find("headrace-a-1") == ()
    assert next(each for each in asked if each != "id") == "qstat"


@pytest.mark.parametrize("system", [Pbs, Sge, Lsf])
def test_dask_jobqueue_shows_the_script_that_the_queue_gets(
    tmp_path: Path, system: type[Pbs | Sge | Lsf]
):
    assert_dask_jobqueue_shows_the_script(system, LeaseFolder(tmp_path / "leases" / "a-1"))


def test_an_option_of_two_words_is_refused_and_its_like_passed_on():
    with pytest.raises(ValidationError, match="headrace needs the job's id at once"):
        Role(backend="pbs", batch={"options": ["-W block=true"]})
    Role(backend="pbs", batch={"options": ["-W depend=afterok:1"]})


def test_only_slurm_submits_as_others():
    with pytest.raises(ValidationError, match="only jobs of Slurm"):
        Role(backend="pbs", kind="gang", batch={"submit_as": "{user}"})
