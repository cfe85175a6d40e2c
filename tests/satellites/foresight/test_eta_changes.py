"""Runs whose expected end has moved far are told, each move once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import finish_run
from headrace.runs.prediction import PredictedPart, Prediction
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.run_list import runs_page
from headrace.steps.mailbox import Progress, StepStatus
from headrace_airflow import eta_changes as module
from headrace_airflow.eta_changes import ReportedEta, eta_changes
from support.runs import make_run, running

HOUR_S = 3600.0
STEPS = ("pack", "stage", "train", "evaluate")


@pytest.fixture
def run(headrace_home) -> Run:
    """One that nothing of has begun; it was to take four hours."""
    run = make_run()
    parts = tuple(
        PredictedPart(name=name, seconds=HOUR_S, spread=1e-4, shared=0.0, num_known=3)
        for name in STEPS
    )
    foreseen = Prediction(
        seconds=4 * HOUR_S, half_s=60.0, parts=parts, unknown=(), gpu_hours=0.0, num_bytes=None,
        made_at=0.0,
    )  # fmt: skip
    write_record(run.folder.prediction, foreseen)
    return run


def told(run: Run, ends_in_s: float) -> None:
    """Somebody was told that the run ends then."""
    write_record(run.folder.eta, ReportedEta(ends_at=time.time() + ends_in_s))


def test_an_end_that_stays_is_not_told(run):
    assert list(eta_changes()) == []
    told(run, 4.9 * HOUR_S)  # less than a quarter of four hours
    assert list(eta_changes()) == []


@pytest.mark.parametrize(("before_s", "how"), [(2.5, "90 min later"), (5.5, "90 min earlier")])
def test_a_move_is_told_once(run, before_s: float, how: str):
    told(run, before_s * HOUR_S)
    (change,) = eta_changes()
    assert change.run_id == run.run_id
    assert change.now - time.time() == pytest.approx(4 * HOUR_S, rel=0.01)
    assert change.words.startswith(f"digits on laptop ends {how} than expected: ")
    assert list(eta_changes()) == []


def test_the_first_move_is_from_what_was_foreseen(run, monkeypatch):
    at = open_ledger().run(run.run_id).created_at
    monkeypatch.setattr(module.time, "time", lambda: at + 2 * HOUR_S)  # and nothing has begun
    (change,) = eta_changes()
    assert change.before == at + 4 * HOUR_S
    assert list(eta_changes()) == []


def test_a_move_that_could_not_be_told_is_told_later(run):
    told(run, HOUR_S)
    next(eta_changes())
    assert len(list(eta_changes())) == 1


def test_short_runs_and_those_that_have_ended_are_left_alone(run):
    told(run, HOUR_S)
    finish_run(run, StepState.SUCCEEDED)
    assert list(eta_changes()) == []
    short = make_run()
    parts = tuple(
        PredictedPart(name=name, seconds=10.0, spread=1e-4, shared=0.0, num_known=3)
        for name in STEPS
    )
    foreseen = Prediction(
        seconds=40.0,
        half_s=1.0,
        parts=parts,
        unknown=(),
        gpu_hours=0.0,
        num_bytes=None,
        made_at=0.0,
    )
    write_record(short.folder.prediction, foreseen)
    told(short, 500.0)
    assert list(eta_changes()) == []


def test_what_was_foretold_gives_the_end_of_a_run_under_way(headrace_home):
    status = StepStatus(state=StepState.RUNNING, progress=Progress(done=1, total=2), elapsed_s=50)
    run = running("train", status)
    parts = [
        PredictedPart(name=name, seconds=100.0, spread=0.01, shared=0.0, num_known=9)
        for name in ("train", "evaluate")
    ]
    values: dict[str, Any] = dict.fromkeys(("half_s", "gpu_hours", "num_bytes"))
    prediction = Prediction(seconds=200.0, parts=tuple(parts), unknown=(), made_at=1.0, **values)
    write_record(run.folder.prediction, prediction)
    assert runs_page().rows[0].eta_s == pytest.approx(150.0, rel=0.1)
