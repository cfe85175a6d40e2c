"""The one answer of the queue that all processes of a site share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.batch.commands import Answer
from headrace.batch.jobs import JobState
from headrace.batch.queue_state import JobRecord, job_status, look, renew
from headrace.batch.slurm import Slurm
from headrace.files.atomic import write_record
from headrace_queues.sge import Sge
from support.scripted_commands import ScriptedCommands, SmallSlurm


def test_however_many_ask_the_queue_hears_one_question(tmp_path: Path):
    """pains 17: one query for all jobs of the site."""
    slurm = SmallSlurm()
    records = []
    for number in range(30):
        job_id = str(number + 1)
        slurm.jobs[job_id] = "RUNNING"
        (tmp_path / f"lease-{number}").mkdir()
        record = JobRecord(job_id=job_id, name=f"a-{number}", submitted_at=time.time())
        write_record(tmp_path / f"lease-{number}" / "job.json", record)
        records.append(record)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: job_status(Slurm(slurm), tmp_path, each, 60.0), records))
    seen = [job_status(Slurm(slurm), tmp_path, each, 60.0).state for each in records]
    assert seen == [JobState.RUNNING] * len(records)
    assert slurm.num_asked["squeue"] == 1


def test_a_silent_queue_is_asked_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    silent = Slurm(ScriptedCommands(Answer(None, "", "no answer")))
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    asked = []
    for _ in range(100):
        if renew(silent, tmp_path, 10.0):
            asked.append(clock[0])
        clock[0] += 1.0
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert 20 <= pauses[0] <= 26
    assert pauses[-1] >= 40


def test_a_job_that_the_queue_has_forgotten_stays_what_it_was_for_a_while(tmp_path: Path):
    """Books may be seconds late, as Grid Engine's: until then it has neither ended nor waits."""
    slurm = SmallSlurm()
    slurm.jobs["1"] = "RUNNING"
    (tmp_path / "a").mkdir()
    record = JobRecord(job_id="1", name="a", submitted_at=time.time())
    write_record(tmp_path / "a" / "job.json", record)
    assert job_status(Slurm(slurm), tmp_path, record, 0.0).state is JobState.RUNNING
    slurm.jobs.clear()
    assert job_status(Slurm(slurm), tmp_path, record, 0.0).state is JobState.RUNNING
    write_record(tmp_path / "a" / "job.json", record.model_copy(update={"submitted_at": 0.0}))
    assert job_status(Slurm(slurm), tmp_path, record, 0.0).state is JobState.UNKNOWN


class Forgetful:
    """A Grid Engine whose jobs have left the queue; its books are one large file."""

    def __init__(self) -> None:
        self.books: list[str] = []  # ids
        self.looks: list[tuple[str, ...]] = []

    def run(self, command: Sequence[str], text: str = "") -> Answer:
        """Answer as that command would."""
        del text
        if command[0] == "qstat":
            return Answer(0, "<job_info><queue_info/><job_info/></job_info>", "")
        if command[0] == "id":
            return Answer(0, "me\n", "")
        self.looks.append(tuple(command))
        block = "======\nhostname     n1\njobnumber    {}\nfailed       0\nexit_status  0\n"
        found = "".join(block.format(job_id) for job_id in self.books)
        return Answer(0, found, "") if found else Answer(1, "", "error: job id 1 not found")


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
    seen = look(Sge(commands), JobRecord(job_id="7", name="a", submitted_at=0.0))
    assert (seen.state, seen.is_from_books) == (JobState.COMPLETED, True)
    assert commands.looks == [("qacct", "-o", "me", "-d", "30", "-j", "7")]
