"""What a run without a terminal says: a line a change, and each reason once."""

from __future__ import annotations

import io

import pytest
from tests.unit.cli.test_view import view

from headrace.cli import watching
from headrace.cli.console import open_console
from headrace.cli.watching import Watching
from headrace.runs.overview import StepView
from headrace.states import StepState

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
    monkeypatch.setattr(watching, "overview", lambda _: next(views))
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
