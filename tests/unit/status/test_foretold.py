"""What runs were expected to take, beside what they took."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.runs.prediction import PredictedPart, Prediction
from headrace.states import StepState
from headrace.status.cost import cost_page
from support.ledger_rows import attempt_row, lease_row, machine_row, run_row


def foretold(folder: Path, **parts: float) -> None:
    write_record(
        RunFolder(folder).prediction,
        Prediction(
            seconds=sum(parts.values()), half_s=5.0, unknown=(), gpu_hours=0.0, num_bytes=None,
            made_at=1.0,
            parts=tuple(
                PredictedPart(name=name, seconds=seconds, spread=0.1, shared=0.1, num_known=1)
                for name, seconds in parts.items()
            ),
        ),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """It packed for 100 s and trained, at the second attempt, for 300 s in all, on a dear gang."""
    ledger = open_ledger()
    ended = {"state": StepState.SUCCEEDED, "finished_at": 601.0}
    ledger.add_run(run_row(folder=str(tmp_path), created_at=1.0, **ended))
    for name, role, usd, steps in (
        ("pool", "cpu", 3.6, [("pack", 1, 100.0)]),
        ("first", "gpu", 36.0, [("train", 1, 100.0)]),
        ("second", "gpu", 36.0, [("train", 2, 200.0), ("evaluate", 1, 100.0)]),
    ):
        ledger.add_lease(lease_row(name, key=name, role=role), max_active=9)
        took_s = sum(took for *_, took in steps)
        priced = {"usd_per_hour": usd, "billed_s": took_s, "ended_at": took_s}
        ledger.put_machines([machine_row(f"i-{name}", lease_id=name, **priced)])
        for step, attempt, took in steps:
            times = {"started_at": 10.0, "finished_at": 10.0 + took, "state": StepState.SUCCEEDED}
            ledger.add_attempt(attempt_row(step, attempt, lease_id=name, **times))
    return tmp_path


def test_time_and_money_beside_what_was_expected(run: Path):
    foretold(run, pack=200.0, train=100.0, evaluate=100.0, between=20.0)
    (row,) = cost_page().foretold
    assert (row.run_id, row.finished_at) == ("run-1", 601.0)
    assert (row.expected_s, row.expected_half_s, row.took_s) == (420.0, 5.0, 600.0)
    assert row.usd == pytest.approx(0.1 + 4.0)
    assert row.expected_usd == pytest.approx(0.2 + 2.0)


def test_a_run_without_a_prediction_is_not_there(run: Path):
    assert run.is_dir()
    assert cost_page().foretold == ()


def test_a_run_of_which_nothing_was_known_is_not_there(run: Path):
    unknown = Prediction(
        seconds=None, half_s=None, parts=(), unknown=("pack",), gpu_hours=None, num_bytes=None,
        made_at=1.0,
    )  # fmt: skip
    write_record(RunFolder(run).prediction, unknown)
    assert cost_page().foretold == ()


def test_a_damaged_prediction_leaves_the_page_whole(run: Path):
    RunFolder(run).prediction.write_text("{")
    assert cost_page().foretold == ()
