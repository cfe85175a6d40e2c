"""What all checks of batch systems ask in the same way, and the words for what they hear."""

from __future__ import annotations

import pytest

from headrace.batch.asking import answered, hours, programs, said
from headrace.batch.commands import Answer
from headrace.batch.jobs import JobState
from headrace.batch.slurm_states import state_of
from headrace.errors import BatchError, LoginError
from support.scripted_commands import ScriptedCommands


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no answer"),
        ("  \n", "no answer"),
        ("sbatch: error: Bad qos\nsbatch: error: Denied\n", "Bad qos; Denied"),
        ("error: a\n\n  b  \n", "a; b"),
    ],
)
def test_words_of_a_command_in_one_line(text: str, words: str):
    assert said(text) == words


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


def test_an_answer_or_what_is_wrong():
    assert answered(ScriptedCommands(Answer(0, "yes", "no")), ("qstat",), "PBS", "up?") == "yes"
    with pytest.raises(BatchError, match="PBS does not answer qstat -B: down") as caught:
        answered(ScriptedCommands(Answer(1, "", "down")), ("qstat", "-B", "-f"), "PBS", "up?")
    assert caught.value.hint == "up?"


def test_the_version_is_that_of_the_first_program_that_tells_one():
    answers = Answer(0, "", "\n"), Answer(0, "", " v 2\nmore"), Answer(0, "3", "")
    commands = ScriptedCommands(*answers)
    (found,) = programs(commands, dict.fromkeys("abc", ("-V",)), "advice")
    assert (found.grade.value, found.seen) == ("ok", "a, b, c: v 2")
    assert commands.seen == [("a", "-V"), ("b", "-V"), ("c", "-V")]


class _Missing:
    """No program is there, or the login node is not."""

    def __init__(self, error: BatchError) -> None:
        self.error = error

    def run(self, command: object, text: str = "") -> Answer:
        raise self.error


def test_each_program_that_is_not_there_is_told():
    found = list(programs(_Missing(BatchError("no such program", "")), {"a": (), "b": ()}, "look"))
    assert [(each.grade.value, each.seen, each.advice) for each in found] == [
        ("fail", "no such program", "look")
    ] * 2
    broken = ScriptedCommands(Answer(1, "", "broken"), Answer(0, "1", ""))
    (found,) = programs(broken, {"a": (), "b": ()}, "look")
    assert (found.grade.value, found.seen) == ("fail", "a: broken")


def test_without_its_login_node_nothing_is_said_of_any():
    with pytest.raises(LoginError):
        list(programs(_Missing(LoginError("no way there", "")), {"a": ()}, "look"))
