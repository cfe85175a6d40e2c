"""Progress without a terminal: a line for each change, each reason once, and not too often."""

from __future__ import annotations

import io
import time

import pytest
from tests.unit.cli.test_view import view

from headrace.cli import watching
from headrace.cli.console import Console, open_console
from headrace.cli.watching import EVERY_S, Watching, telling
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from headrace.status.step import StepView
from headrace.status.suite import suite_views
from support.suite_journal import added, ended, journal, make_suite, started

WHY = "Rank 1 died\n  and more"


def test_why_an_attempt_ended_is_told_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(state: StepState, attempt: int, message: str = "") -> StepView:
        return StepView(name="train", state=state, attempt=attempt, message=message)

    seen = [
        train(StepState.RUNNING, 1),
        train(StepState.FAILED, 1, WHY),
        train(StepState.QUEUED, 2),
        train(StepState.RUNNING, 2),
        train(StepState.FAILED, 2, WHY),
    ]
    views = iter([view(step, state=StepState.RUNNING) for step in seen])
    monkeypatch.setattr(watching, "run_details", lambda _: next(views))
    monkeypatch.setattr(watching, "REFRESH_S", 0.0)
    console = open_console()
    console.file = io.StringIO()
    with Watching("digits-1", console) as tick:
        for _ in seen[1:]:
            tick()
    assert [line for line in console.file.getvalue().splitlines() if "train" in line] == [
        "train: running",
        "train: failed",
        "train: queued (attempt 2), after: Rank 1 died",
        "train: running (attempt 2)",
        "train: failed (attempt 2)",
    ]


@pytest.mark.usefixtures("headrace_home")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_of_a_suite_its_own_table_is_shown_once_its_trials_begin(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    suite = make_suite()
    ran = [StepView(name="pack", state=StepState.RUNNING, attempt=1)]
    tried = [StepView(name="suite", state=StepState.RUNNING, attempt=1)]
    views = iter([view(*ran), view(*ran, *tried), view(*ran, *tried), view(*ran, *tried)])
    known = {"run_id": suite.run_id, "state": StepState.RUNNING}
    monkeypatch.setattr(watching, "run_details", lambda _: next(views).model_copy(update=known))
    monkeypatch.setattr(watching, "REFRESH_S", 0.0)
    monkeypatch.setattr(watching, "EVERY_S", 0.0)
    console = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system=None)
    with Watching(suite.run_id, console) as tick:
        tick()
        before = console.file.getvalue()
        journal(suite.folder, added(1), added(2), started(1), ended(1, 0.5))
        tick()
        tick()
    later = console.file.getvalue().removeprefix(before)
    assert "accuracy" not in before
    assert "2: 1 queued, 1 succeeded" in later
    assert "accuracy 0.5 (#1" in later
    assert is_terminal == ("\nbest: accuracy 0.5 (#1" in later)
    assert is_terminal or later.count("2: 1 queued") == 1


@pytest.mark.usefixtures("headrace_home")
def test_how_a_suite_has_ended_is_told_though_its_trials_ended_before_it() -> None:
    suite = make_suite()
    journal(suite.folder, added(1), started(1), ended(1, 0.5))
    console = Console(file=io.StringIO(), width=80)
    shown = Watching(suite.run_id, console)
    shown.count(suite_views([open_ledger().run(suite.run_id)])[0])
    record = open_ledger().finish_run(suite.run_id, StepState.SUCCEEDED, time.time(), {})
    for _ in range(2):
        shown.count(suite_views([record])[0])
    lines = console.file.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["running", "succeeded"]


def test_in_a_file_there_is_a_line_now_and_then():
    console = Console(file=io.StringIO(), width=40)
    moments = iter([0.0, 0.5, 0.5, EVERY_S, EVERY_S + 0.5, EVERY_S + 0.5])
    with telling(console, lambda: next(moments)) as tick:
        for text in ("writing [red]", "too soon", "round 1"):
            tick(text)
    assert console.file.getvalue() == "   0 s  writing [red]\n   6 s  round 1\n"


def test_on_a_terminal_there_is_one_moving_line():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with telling(console) as tick:
        tick("reading, round 1 of 5")
    assert "reading, round 1 of 5" in console.file.getvalue()
