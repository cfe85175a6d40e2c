"""The one answer of the queue that all processes of a site share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobState
from headrace.batch.queue_state import JobRecord, job_status, renew
from headrace.batch.slurm import Slurm
from headrace.files.atomic import write_record
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
    silent = Slurm(ScriptedCommands(CommandResult(None, "", "no answer")))
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
