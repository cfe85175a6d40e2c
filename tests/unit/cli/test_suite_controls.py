"""`headrace suite cancel` and the like of a suite that is not named: the only one that is meant."""

from __future__ import annotations

import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.suites.records import Control
from support.command_line import headrace
from support.suite_journal import added, journal, make_suite

pytestmark = pytest.mark.usefixtures("headrace_home")


def asked(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    lines = run.folder.controls.read_text().splitlines()
    controls = [Control.model_validate_json(line) for line in lines]
    return [(each.what, each.numbers) for each in controls]


def test_the_only_suite_need_not_be_named() -> None:
    ended = make_suite()
    end_run(ended, StepState.FAILED, "a test")
    suite = make_suite(overrides=("suite.points=[{}]",))
    journal(suite.folder, added(1), added(2))
    for words in (
        ("pause",), ("resume",), ("cancel", "1", "2"), ("cancel",), ("prioritize", "2"),
        ("add", "seed=9"),
    ):  # fmt: skip
        assert f"{suite.run_id}: asked to" in headrace("suite", *words).stdout
    expected = [("pause", ()), ("resume", ()), ("cancel", (1, 2)), ("cancel", ())]
    assert asked(suite) == [*expected, ("prioritize", (2,)), ("add", ())]
    assert headrace("suite", "logs", "1").output == ""
    assert not ended.folder.controls.exists()
    end_run(suite, StepState.FAILED, "a test")
    for run in (ended, suite):  # none goes on: both may be meant
        with pytest.raises(UserError, match=f"There are several suites: .*{run.run_id}"):
            headrace("suite", "retry")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("cancel", "SUITE", "x"), "'x' is not a trial's number"),
        (("prioritize", "SUITE"), "A trial's number is missing"),
        (("logs", "1", "2"), "Exactly one trial is needed"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], why: str) -> None:
    suite = make_suite()
    with pytest.raises(UserError, match=why):
        headrace("suite", *(word.replace("SUITE", suite.run_id) for word in words))
    assert not suite.folder.controls.exists()


def test_without_suites_nothing_can_be_asked() -> None:
    with pytest.raises(UnknownNameError, match="no suites yet"):
        headrace("suite", "cancel")
