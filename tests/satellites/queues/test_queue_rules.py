"""What all batch systems have in common, as PBS, Grid Engine and LSF do it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobState
from headrace.batch.queue_state import JobRecord, current_status, job_status
from headrace.errors import BatchError, LoginError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role
from headrace_queues.lsf import Lsf
from headrace_queues.pbs import Pbs
from headrace_queues.sge import Sge
from support.batch_contract import FakeQueueContract
from support.factories import job_spec
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


def test_a_long_job_that_the_books_have_late_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 31: Grid Engine writes them up to 15 s after the job has left the queue."""
    clock = [5000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    commands = Forgetful()
    (tmp_path / "1").mkdir()
    record = JobRecord(job_id="1", name="1", submitted_at=1000.0)
    write_record(tmp_path / "1" / "job.json", record)
    assert not job_status(Sge(commands), tmp_path, record, 10.0).state.is_final
    commands.books = ["1"]
    clock[0] += 31.0
    assert job_status(Sge(commands), tmp_path, record, 10.0).state is JobState.COMPLETED


def test_books_are_asked_for_one_job_by_its_id():
    """The answer does not grow with what the user ran before, nor is it asked for twice."""
    commands = Forgetful()
    commands.books = ["7"]
    seen = current_status(Sge(commands), JobRecord(job_id="7", name="a", submitted_at=0.0))
    assert (seen.state, seen.is_from_books) == (JobState.COMPLETED, True)
    assert commands.looks == [("qacct", "-o", "me", "-j", "7")]


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
    found = next(Lsf(commands).check(job_spec()))
    assert (found.grade.value, found.seen) == ("ok", "bsub, bjobs, bkill, bacct, bqueues: v 2")
    assert commands.seen[:2] == [("bsub", "-V"), ("bjobs", "-V")]


class _Missing:
    """No program is there, or the login node is not."""

    def __init__(self, error: BatchError) -> None:
        self.error = error

    def run(self, command: object, text: str = "") -> CommandResult:
        raise self.error


def test_each_program_that_is_not_there_is_told():
    found = list(Pbs(_Missing(BatchError("no such program", ""))).check(job_spec()))
    assert [(each.grade.value, each.seen) for each in found] == [("fail", "no such program")] * 4
    assert "put them on PATH" in found[0].advice
    broken = ScriptedCommands(CommandResult(1, "", "broken"), CommandResult(0, "1", ""))
    (failed,) = Pbs(broken).check(job_spec())
    assert (failed.grade.value, failed.seen) == ("fail", "qsub: broken")


def test_without_its_login_node_nothing_is_said_of_any():
    with pytest.raises(LoginError):
        list(Pbs(_Missing(LoginError("no way there", ""))).check(job_spec()))


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


class TestPbs(FakeQueueContract):
    kind = "pbs"
    make = Pbs
    leaves_nodes_out = False
    refused = {"partition": "nope"}
    refusal = "Unknown queue"
    impossible = {"nodes": 99}
    no_answer = {
        "program": "qsub",
        "error": "Communication failure.\nqsub: cannot connect to server",
    }


class TestLsf(FakeQueueContract):
    kind = "lsf"
    make = Lsf
    refused = {"partition": "nope"}
    refusal = "nope: No such queue"
    impossible = {"options": ('-w "done(12)"',)}
    no_answer = {"program": "bsub", "error": "Cannot connect to LSF. Please wait ..."}


PBS_QUEUES: dict[str, dict[str, Any]] = {
    "quick": {
        "queue_type": "Execution",
        "Priority": 25,
        "from_route_only": "True",
        "resources_max": {"ngpus": 0, "walltime": "04:00:00"},
        "resources_min": {"ngpus": 1},
        "enabled": "True",
        "started": "True",
    },
    "long": {"queue_type": "Execution", "resources_max": {"walltime": "336:00:00"}},
    "free": {"queue_type": "Execution", "resources_max": {"ngpus": 0}},
    "auto": {"queue_type": "Route", "route_destinations": "quick,long"},
    "day": {
        "queue_type": "Route",
        "route_destinations": "long@desched1",
        "resources_max": {"walltime": "24:00:00"},
    },
    "circle": {"queue_type": "Route", "route_destinations": "circle,quick"},
}
"""Shaped as in `qstat -Q -f -F json` of PBS Professional 2021.1 and 2022.1 (University of
Manchester's and NCAR's queues in public repositories)."""

SGE_QUEUE = """\
qname                 {name}
hostlist              @allhosts
pe_list               make smp mpi-[48-9].mpi,[@himem=mpi-16]
s_rt                  INFINITY
h_rt                  {limit}
"""

LSF_QUEUE = """
QUEUE: {name}
  -- Any

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

{limits}
SCHEDULING POLICIES:  EXCLUSIVE
"""
LSF_RUN_LIMIT = "MAXIMUM LIMITS:\n RUNLIMIT\n {minutes} min of host1\n"


@pytest.mark.parametrize(
    ("partition", "of_server", "seconds"),
    [
        ("quick", {}, 4 * 3600.0),
        ("quick@desched1", {}, 4 * 3600.0),
        (None, {"default_queue": "long"}, 336 * 3600.0),
        ("free", {}, None),
        ("free", {"resources_max": {"walltime": "12:00:00"}}, 12 * 3600.0),
        ("quick", {"resources_max": {"walltime": "02:00:00"}}, 4 * 3600.0),
        ("auto", {}, 336 * 3600.0),
        ("day", {}, 24 * 3600.0),
        ("circle", {}, 4 * 3600.0),
        ("none", {}, None),
    ],
)
def test_of_pbs(partition: str | None, of_server: dict[str, Any], seconds: float | None):
    """The server's limit is for queues without one: pbs_server_attributes(7B)."""
    answers = [
        CommandResult(
            0, json.dumps({"pbs_version": "2022.1.5", "Server": {"desched1": of_server}}), ""
        ),
        CommandResult(0, json.dumps({"pbs_version": "2022.1.5", "Queue": PBS_QUEUES}), ""),
    ]
    commands = ScriptedCommands(*answers)
    assert Pbs(commands).longest_job_s(Batch(partition=partition)) == seconds
    assert len(commands.seen) == 2


@pytest.mark.parametrize(
    ("limits", "batch", "seconds"),
    [
        (["1:0:0", "48:00:00"], {"partition": "q1"}, 48 * 3600.0),
        (["1:0:0", "48:00:00"], {}, 48 * 3600.0),
        (["1:0:0", "INFINITY"], {}, None),
        (["48:00:00,[node4=INFINITY]"], {}, 48 * 3600.0),
        (["1:0:0"], {"parallel_environment": "mpi-16"}, 3600.0),
        (["1:0:0"], {"parallel_environment": "other"}, None),
        (["1:0:0", "2:0:0"], {"partition": "*@@gpu"}, 2 * 3600.0),
    ],
)
def test_of_grid_engine(limits: list[str], batch: dict[str, str], seconds: float | None):
    """A job that names no queue may run in any that has its parallel environment."""
    names = [f"q{index}" for index in range(len(limits))]
    told = {name: SGE_QUEUE.format(name=name, limit=limits[i]) for i, name in enumerate(names)}
    asked = [batch["partition"]] if batch.get("partition") in names else names
    answers = ["\n".join(names), *(told[name] for name in asked)]
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in answers))
    assert Sge(commands).longest_job_s(Batch.model_validate(batch)) == seconds
    assert [command[1:] for command in commands.seen] == [("-sql",), *(("-sq", n) for n in asked)]


@pytest.mark.parametrize(
    ("partition", "seconds"),
    [
        ("short", 3600.0),
        ("short long", 2880 * 60.0),
        ("short free", None),
        (None, 2880 * 60.0),
        ("none", None),
    ],
)
def test_of_lsf(partition: str | None, seconds: float | None):
    """Of several queues, LSF takes one that the job fits into: bsub, `-q`."""
    limits = {"short": "60.0", "long": "2880.0", "free": ""}
    told = "-----\n".join(
        LSF_QUEUE.format(name=name, limits=minutes and LSF_RUN_LIMIT.format(minutes=minutes))
        for name, minutes in limits.items()
    )
    answers = [told, "Default Queues:  short long\nMBD_SLEEP_TIME used for calculations:  10 s\n"]
    commands = ScriptedCommands(*(CommandResult(0, text, "") for text in answers))
    assert Lsf(commands).longest_job_s(Batch(partition=partition)) == seconds
