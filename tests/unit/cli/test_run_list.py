"""`headrace runs`: each run's main metric whatever its task; `runs show`: attempts and causes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import UnknownNameError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.suites.records import SuiteSummary
from support.command_line import headrace
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import make_suite

pytestmark = pytest.mark.usefixtures("headrace_home")


def shown(*arguments: str) -> str:
    done = headrace("runs", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def succeeded(overrides: tuple[str, ...] = (), **outputs: Any) -> Run:
    run = make_run(overrides=overrides)
    lease_id = lease_on_disk(run)
    for step, given in outputs.items():
        attempt_row_of(run, step, lease_id)
        open_ledger().set_attempt(run.run_id, step, 1, state=StepState.SUCCEEDED, outputs=given)
    end_run(run, StepState.SUCCEEDED, "a test")
    return run


@pytest.mark.parametrize(
    ("monitor", "trained", "evaluated", "name", "value"),
    [
        ("val_loss", {"loss": 0.5, "val_loss": 0.4}, {"rmse": 2.5}, "val_loss", 0.4),
        ("val_f1", {"loss": 0.5}, {"rmse": 2.5, "mae": 1.5}, "mae", 1.5),
        (None, {"loss": 0.5, "val_loss": 0.4}, {"dice": 0.75, "iou": None}, "dice", 0.75),
        ("accuracy", {"accuracy": 0.25}, {"f1": 0.5, "accuracy": 0.75}, "accuracy", 0.75),
        (None, {"loss": 0.5, "val_loss": 0.4}, {}, "val_loss", 0.4),
        (None, {"loss": 0.5, "grad": 7.0}, {}, "loss", 0.5),
    ],
)
def test_the_main_metric_is_that_of_the_task(
    monitor: str | None, trained: dict, evaluated: dict, name: str, value: float
):
    overrides = (f"trainer.monitor={monitor}",) if monitor else ()
    succeeded(overrides, train={"metrics": trained}, evaluate={"metrics": evaluated})
    assert shown().rstrip().endswith(f"{name} {value:g}")
    assert json.loads(shown("--json"))[0]["metric"] == {"name": name, "value": value, "std": None}


def test_a_run_that_only_packed_and_one_whose_recipe_is_gone_have_none():
    run = succeeded(pack={"num_samples": 5})
    assert json.loads(shown("--json"))[0]["metric"] is None
    for content in ("{", "[]"):
        run.folder.recipe.write_text(content)
        assert shown().splitlines()[1].split()[2] == "succeeded"
    run.folder.recipe.unlink()
    assert json.loads(shown("--json"))[0]["metric"] is None


def test_a_suite_tells_its_trials_and_the_best_value():
    run = make_suite()
    assert "trials" not in shown()
    counts = {"succeeded": 4, "pruned": 1, "failed": 2, "running": 1, "queued": 2}
    summary = SuiteSummary(total=12, counts=counts, best=3, best_value=0.25)
    write_record(run.folder.summary, summary)
    assert "7 of 12 trials, 2 without success, best 0.25 (#3)" in shown()
    run.folder.summary.write_text("{")
    assert "its suite.json is damaged" in shown()


def test_show_tells_every_attempt_with_its_cause():
    run = make_run()
    lease_id = lease_on_disk(run)
    attempt_row_of(run, "pack", lease_id)
    open_ledger().set_attempt(
        run.run_id, "pack", 1, state=StepState.LOST, failure_class=FailureClass.LOST,
        message="The node vanished\n  and more", started_at=100.0, finished_at=190.0,
    )  # fmt: skip
    attempt_row_of(run, "pack", lease_id, attempt=2, key="again", state=StepState.RUNNING)
    told = shown("show", run.run_id)
    first, second, third = (" ".join(line.split()) for line in told.splitlines()[2:])
    assert first.startswith("pack 1 lost")
    assert "1:30 cpu-1 lost: The node vanished" in first
    assert second == "and more"
    assert third.startswith("pack 2 running")
    attempts = json.loads(shown("show", run.run_id, "--json"))["attempts"]
    causes = [(each["attempt"], each["failure_class"]) for each in attempts]
    assert causes == [(1, "lost"), (2, None)]
    with pytest.raises(UnknownNameError, match="There is no run 'x'"):
        shown("show", "x")
