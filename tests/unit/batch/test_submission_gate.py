"""Who may submit, and when; the state of a queue that all processes share; shared rules."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.findings import hours
from headrace.batch.job_records import JobSpec, JobState
from headrace.batch.queue_state import (
    JobRecord,
    QueueState,
    job_status,
    read_state,
    renew,
    state_file,
)
from headrace.batch.slurm import Slurm, state_of
from headrace.batch.submission_gate import BURST, SubmissionGate, take_token, tokens_after
from headrace.errors import BatchError, JobRefusedError, QueueFullError, SubmitLimitError
from headrace.files.atomic import write_record
from headrace.recipe.batch import Batch
from support.scripted_commands import ScriptedCommands, SmallSlurm


class Site:
    """A folder of leases and the Slurm that they use."""

    def __init__(self, leases: Path, **rules: object) -> None:
        self.leases = leases
        self.slurm = SmallSlurm()
        given = {"poll": 1e-6, "submits_per_minute": 10**6}
        self.gate = SubmissionGate(Slurm(self.slurm), leases, Batch.model_validate(given | rules))

    def submit(self, name: str) -> str:
        (self.leases / name).mkdir(exist_ok=True, parents=True)
        job = JobSpec(name=name, command=("true",), nodes=1, cpus_per_node=1, time_limit_s=60,
                      folder="/", log="/dev/null")  # fmt: skip
        return self.gate.submit(job, self.leases / name / "job.json").job_id


def test_a_place_is_free_again_when_the_queue_has_told_the_end(tmp_path: Path):
    """pains 16: the site's limit on jobs, running ones too."""
    site = Site(tmp_path, max_jobs=2)
    assert [site.submit(name) for name in ("a", "b", "a")] == ["1", "2", "1"]
    with pytest.raises(QueueFullError, match="waiting: site limit of 2 jobs"):
        site.submit("c")
    site.slurm.jobs["1"] = "RUNNING"
    with pytest.raises(QueueFullError):
        site.submit("c")
    (tmp_path / "a" / "closed").touch()  # the lease has said goodbye, its job is still there
    with pytest.raises(QueueFullError):
        site.submit("c")
    site.slurm.jobs["1"] = "COMPLETED"
    assert site.submit("c") == "3"
    assert site.slurm.num_asked["sbatch"] == 3


def test_running_jobs_do_not_count_as_queued(tmp_path: Path):
    site = Site(tmp_path, max_queued=1)
    site.submit("a")
    with pytest.raises(QueueFullError, match="waiting: site limit of 1 queued jobs"):
        site.submit("b")
    site.slurm.jobs["1"] = "RUNNING"
    assert site.submit("b") == "2"


def test_what_slurms_books_allow_is_kept_and_asked_about_once(tmp_path: Path):
    """pains 16: read where the site's rules say nothing."""
    site = Site(tmp_path)
    site.slurm.association = "physics|chemistry|9||\nphysics|physics|1|normal|\n"
    site.submit("a")
    for _ in range(2):
        with pytest.raises(QueueFullError, match=r"MaxSubmitJobs of account physics\) limit of 1 "):
            site.submit("b")
    assert site.slurm.num_asked["sacctmgr"] == 2  # the association and its QOS


def test_books_that_do_not_answer_are_no_limit(tmp_path: Path):
    site = Site(tmp_path)
    site.slurm.association = "no such form"
    assert [site.submit(name) for name in ("a", "b")] == ["1", "2"]


def test_a_refusal_for_a_limit_is_waited_for_by_all(tmp_path: Path):
    """pains 16: others may use the user's share, too."""
    site = Site(tmp_path, poll=600.0)
    site.slurm.refuses = "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed"
    with pytest.raises(SubmitLimitError, match="no further job: QOSMaxSubmitJobPerUserLimit"):
        site.submit("a")
    with pytest.raises(QueueFullError, match="no further job: QOSMaxSubmitJobPerUserLimit"):
        site.submit("b")
    assert site.slurm.num_asked["sbatch"] == 1
    file = state_file(tmp_path, "")
    slots = read_state(file)
    assert slots.refused_until - time.time() <= 1.25 * 600
    write_record(file, slots.model_copy(update={"refused_until": 0.0, "num_refusals": 3}))
    with pytest.raises(SubmitLimitError):
        site.submit("b")
    slots = read_state(file)
    assert slots.refused_until - time.time() > 3 * 600  # less and less often
    write_record(file, slots.model_copy(update={"refused_until": 0.0}))
    site.slurm.refuses = ""
    assert site.submit("b") == "1"
    assert read_state(file).refused == ""


def test_a_job_that_is_refused_for_good_keeps_no_place(tmp_path: Path):
    site = Site(tmp_path, max_jobs=1)
    site.slurm.refuses = "invalid partition specified: nope"
    with pytest.raises(JobRefusedError, match="invalid partition"):
        site.submit("a")
    site.slurm.refuses = ""
    assert site.submit("b") == "1"


def test_whoever_died_between_place_and_submit_keeps_it_for_a_minute(tmp_path: Path):
    site = Site(tmp_path, max_jobs=1)
    site.submit("a")
    (tmp_path / "a" / "job.json").unlink()
    file = state_file(tmp_path, "")
    slots = read_state(file)
    left = slots.taken["a"].model_copy(update={"job_id": ""})
    write_record(file, QueueState(taken={"a": left}))
    with pytest.raises(QueueFullError):
        site.submit("b")
    old = left.model_copy(update={"taken_at": left.taken_at - 100.0})
    write_record(file, QueueState(taken={"a": old}))
    assert site.submit("b") == "2"


def test_more_submits_than_the_pace_allows_wait(tmp_path: Path):
    """pains 17: a burst is spread out."""
    site = Site(tmp_path, submits_per_minute=1)
    for name in ("a", "b", "c", "d"):
        site.submit(name)
    with pytest.raises(QueueFullError, match="waiting: site limit of 1 submits a minute"):
        site.submit("e")


@pytest.mark.parametrize(
    ("user", "qos", "account", "limits"),
    [
        ("physics|chemistry|7|long|long,short\nphysics|physics|||normal\n", "", None, []),
        ("physics|chemistry|7|long|long,short\nphysics|physics|||normal\n", "", "chemistry",
         ["Slurm's (MaxSubmitJobs of account chemistry) limit of 7 jobs"]),
        ("a|a|||normal,long\n", "12\n", None,
         ["Slurm's (MaxSubmitJobsPerUser of QOS normal) limit of 12 jobs"]),
        ("a|a|||short,long\n", "12\n", None, []),
        ("", "12\n", None, []),
    ],
)  # fmt: skip
def test_limits_in_the_words_of_sacctmgr(
    user: str, qos: str, account: str | None, limits: list[str]
):
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in ("me\n", user, qos)))
    job = JobSpec(name="a", command=("true",), nodes=1, cpus_per_node=1, time_limit_s=60,
                  folder="/", log="/dev/null", account=account)  # fmt: skip
    assert [str(each) for each in Slurm(commands).limits(job)] == limits


def test_the_longest_job_is_the_least_of_partition_association_and_qos():
    partitions = CommandResult(0, "main*|2-00:00:00\ngpu|12:00:00\nfree|infinite\n", "")
    books = CommandResult(0, "phys|chem|01:00:00|long|long\nphys|phys|1-00:00:00||normal\n", "")
    system = Slurm(
        ScriptedCommands(
            partitions, CommandResult(0, "me\n", ""), books, CommandResult(0, "\n", "")
        )
    )
    assert system.longest_job_s(Batch()) == 86400.0
    commands = ScriptedCommands(
        partitions, CommandResult(0, "me\n", ""), books, CommandResult(0, "00:30:00\n", "")
    )
    assert Slurm(commands).longest_job_s(Batch(account="chem", partition="gpu")) == 1800.0
    assert commands.seen[-1][-2:] == ("name=long", "format=MaxWall")
    no_books = CommandResult(1, "", "sacctmgr: error: accounting is off")
    none = ScriptedCommands(partitions, CommandResult(0, "me\n", ""), no_books)
    assert Slurm(none).longest_job_s(Batch(partition="free")) is None
    with pytest.raises(BatchError):
        Slurm(ScriptedCommands(no_books)).longest_job_s(Batch())


@pytest.mark.parametrize(
    ("tokens", "passed_s", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 30.0, 1.0), (0.5, 60.0, 2.5), (1.0, 1e6, BURST), (2.0, -5.0, 2.0)],
)
def test_tokens_come_evenly_and_are_kept_up_to_a_few(
    tokens: float, passed_s: float, expected: float
):
    assert tokens_after(tokens, passed_s, per_minute=2) == expected


def test_a_burst_is_free_and_then_tokens_are_waited_for(tmp_path: Path):
    """pains 17: submits of all processes share one bucket."""
    waits = [
        take_token(tmp_path / "queue" / "submits.json", per_minute=1) for _ in range(BURST + 2)
    ]
    assert waits[:BURST] == [0.0] * BURST
    # asking takes nothing
    assert waits[BURST:] == [pytest.approx(60.0, abs=1.0)] * 2
    assert (tmp_path / "queue").stat().st_mode & 0o077 == 0


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "exit code 1"),
        ("  \n", "exit code 1"),
        ("slurm_load_jobs error: Unable to contact", "Unable to contact"),
        ("sbatch: error: Bad qos\nsbatch: error: Denied\n", "Bad qos; Denied"),
        ("error: a\n\n  b  \n", "a; b"),
    ],
)
def test_words_of_a_command_in_one_line(text: str, words: str):
    assert CommandResult(1, "", text).words == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "no limit"), (90.0, "1.5 min"), (3599.0, "60 min"), (3600.0, "1 h"), (5400.0, "1.5 h")],
)
def test_times_for_people(seconds: float | None, words: str):
    assert hours(seconds) == words


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("", JobState.RUNNING),
        ("HIBERNATING", JobState.RUNNING),
    ],
)
def test_a_state_that_nobody_knows_is_no_proof_of_an_end(text: str, state: JobState):
    assert state_of(text) is state
