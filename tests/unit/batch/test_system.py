"""What all batch systems have in common."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.batch.commands import Answer
from headrace.batch.findings import hours
from headrace.batch.jobs import JobSpec, JobState
from headrace.batch.slurm import state_of
from headrace.errors import BatchError, LoginError
from headrace_queues.lsf import Lsf
from headrace_queues.pbs import Pbs
from headrace_queues.sge import Sge
from support.scripted_commands import ScriptedCommands


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
    assert Answer(1, "", text).words == words


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


def test_an_answer_that_is_an_error_comes_with_what_may_be_wrong():
    with pytest.raises(BatchError, match="PBS does not answer qstat: down") as caught:
        Pbs(ScriptedCommands(Answer(1, "", "down"))).poll(["1"])
    assert "Is the server up?" in caught.value.hint


def test_the_version_is_that_of_the_first_program_that_tells_one():
    answers = Answer(0, "", "\n"), Answer(0, "", " v 2\nmore"), Answer(0, "3", "")
    commands = ScriptedCommands(*answers)
    found = next(Lsf(commands).check(_JOB))
    assert (found.grade.value, found.seen) == ("ok", "bsub, bjobs, bkill, bacct, bqueues: v 2")
    assert commands.seen[:2] == [("bsub", "-V"), ("bjobs", "-V")]


class _Missing:
    """No program is there, or the login node is not."""

    def __init__(self, error: BatchError) -> None:
        self.error = error

    def run(self, command: object, text: str = "") -> Answer:
        raise self.error


def test_each_program_that_is_not_there_is_told():
    found = list(Pbs(_Missing(BatchError("no such program", ""))).check(_JOB))
    assert [(each.grade.value, each.seen) for each in found] == [("fail", "no such program")] * 4
    assert "have them on PATH" in found[0].advice
    broken = ScriptedCommands(Answer(1, "", "broken"), Answer(0, "1", ""))
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
        def run(self, command: Sequence[str], text: str = "") -> Answer:
            del text
            asked.append(command[0])
            return Answer(0, "<a/>" if command[0] == "qstat" else "", "")

    assert Sge(Empty()).find("headrace-a-1") == ()
    assert next(each for each in asked if each != "id") == "qstat"
