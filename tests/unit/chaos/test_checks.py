from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.campaign.checks import Result, differences, left_over, wrong
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import RunRecord
from headrace.states import StepState

RESULT = Result(
    dataset="f",
    weights="w",
    steps=10,
    train_metrics={"loss": 0.5},
    test_metrics={"accuracy": 0.9},
    samples=(7, 7, 7),
    files=frozenset({"runs/RUN/report/report.html", "tier/x"}),
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"files": RESULT.files | {"runs/RUN/x"}}, []),
        ({"files": RESULT.files - {"tier/x"}}, []),
        ({"files": frozenset()}, ["file runs/RUN/report/report.html is missing"]),
        ({"weights": "v"}, ["weights: v, not w"]),
        ({"samples": (7, 8, 7)}, ["samples: (7, 8, 7), not (7, 7, 7)"]),
        (
            {"test_metrics": {"accuracy": 0.8}, "steps": 9},
            ["steps: 9, not 10", "test_metrics: {'accuracy': 0.8}, not {'accuracy': 0.9}"],
        ),
    ],
)
def test_differences_of_results(changes: dict[str, object], told: list[str]):
    assert list(differences(RESULT.model_copy(update=changes), RESULT)) == told


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an empty ledger and no lease."""
    Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    SiteFolder(tmp_path).leases.mkdir()
    return tmp_path


def run_of(home: Path, state: StepState = StepState.SUCCEEDED) -> RunRecord:
    return RunRecord(
        run_id="run-1",
        key="k",
        recipe_name="r",
        site_name="s",
        recipe_fingerprint="f",
        folder=str(home / "runs" / "run-1"),
        state=state,
        created_at=time.time(),
    )


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_run_that_did_not_succeed_is_wrong(home: Path):
    assert list(wrong(home, None, RESULT)) == ["the run is not in the ledger"]
    assert list(wrong(home, run_of(home, StepState.FAILED), RESULT)) == ["the run is failed"]


def test_files_that_the_reference_has_are_not_left_over(home: Path):
    touch(home / "runs" / "run-1" / "report" / "report.html")
    assert list(left_over(home, run_of(home), RESULT, ())) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tier/datasets/.half", "file tier/datasets/.half"),
        ("runs/run-1/report/.x", "file runs/RUN/report/.x"),
        ("leases/l/.job.json.0123456789ab", "temporary leases/l/.job.json.0123456789ab"),
        ("leases/l/steps/.0123456789abcdef0123456789abcdef", "temporary leases/l/steps/.0123"),
        ("leases/l/host.json", "disk: lease l is not closed, or not in the ledger"),
    ],
)
def test_what_else_is_there_is_left_over(home: Path, name: str, told: str):
    touch(home / name)
    found = list(left_over(home, run_of(home), RESULT, ()))
    assert [each for each in found if each.startswith(told)]


def test_shared_memory_that_is_still_there_is_left_over(home: Path):
    there = home / "sem.mp-1"
    there.touch()
    found = list(left_over(home, run_of(home), RESULT, [there, home / "sem.mp-2"]))
    assert found == [f"memory {there}"]
