"""Checkpoints are evaluated as they come, each once, whatever training does to its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.evaluation import evaluate_step
from headrace.evaluation.evaluate_step import watch
from headrace.files.layout import RunFolder, checkpoint_name
from headrace.files.lines import append_line
from headrace.steps.context import StepContext
from headrace.steps.history import HistoryRow, read_evaluated, training_file
from support.training import make_context, make_recipe, make_site


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepContext:
    monkeypatch.setattr(evaluate_step, "_WATCH_S", 0.01)
    evaluate = {"split": "val", "also_splits": ["test"], "also_checkpoints": [7]}
    recipe = make_recipe({"model": {"_target_": "torch.nn.Identity"}, "evaluate": evaluate})
    return make_context(tmp_path, recipe, make_site(tmp_path), run="watching")


@pytest.fixture
def trained(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "runs" / "trained")
    run.checkpoints.mkdir(parents=True)
    return run


class Evaluating:
    """Notes what it is asked for; writes further checkpoints, as a training meanwhile would."""

    def __init__(self, context: StepContext, trained: RunFolder, later: list[str]) -> None:
        self.context, self.trained, self.later = context, trained, later
        self.seen: list[tuple[int, str, str]] = []

    def __call__(self, variant: int, checkpoint: str) -> dict[str, Any]:
        if self.later:
            for path in self.trained.checkpoints.glob("step-*"):
                path.unlink()  # retention; what is evaluated just now must stay
            name = self.later.pop()
            (self.trained.checkpoints / name).write_text(name)
        else:
            self.context.run_folder.enough.touch()
        self.seen.append((variant, Path(checkpoint).name, Path(checkpoint).read_text()))
        split = ("val", "test")[variant]
        metrics = {"accuracy": len(self.seen) / 10, "auroc": None}
        return {"split": split, "metrics": metrics, "report": f"/r/{len(self.seen)}"}


def test_the_newest_is_next_and_outlives_the_training_that_removes_it(
    context: StepContext, trained: RunFolder
) -> None:
    for step in (3, 6):
        (trained.checkpoints / checkpoint_name(step)).write_text(checkpoint_name(step))
    evaluate = Evaluating(context, trained, ["final.ckpt", checkpoint_name(9)])
    row = HistoryRow(at=1.0, launch=1, epoch=0, step=10)
    trained.history.mkdir()
    append_line(training_file(trained), row.model_dump_json())
    outputs = watch(context, trained, evaluate)
    names = [checkpoint_name(6)] * 2 + ["final.ckpt"] * 2
    assert evaluate.seen == [(n % 2, name, name) for n, name in enumerate(names)]
    told = [(row.step, row.split, row.metrics) for row in read_evaluated(trained)]
    assert told == [
        (step, split, {"accuracy": (n + 1) / 10})
        for n, (step, split) in enumerate([(6, "val"), (6, "test"), (10, "val"), (10, "test")])
    ]
    assert outputs == {"split": "val", "metrics": told[2][2], "report": "/r/3", "steps": [6, 10]}
    assert not context.run_folder.checkpoints.exists()


def test_what_was_evaluated_before_an_interruption_is_not_evaluated_again(
    context: StepContext, trained: RunFolder
) -> None:
    (trained.checkpoints / checkpoint_name(3)).write_text("a")
    watch(context, trained, Evaluating(context, trained, []))
    (trained.checkpoints / checkpoint_name(6)).write_text("b")
    again = Evaluating(context, trained, [])
    assert watch(context, trained, again)["steps"] == [3, 6]
    assert [name for _, name, _ in again.seen] == [checkpoint_name(6)] * 2
    other = Evaluating(context, trained, [])
    spec = context.spec.model_copy(update={"run_id": "another"})
    watch(replace(context, spec=spec), trained, other)
    assert len(other.seen) == 4


def test_a_training_without_a_checkpoint_has_nothing_to_evaluate(
    context: StepContext, trained: RunFolder
) -> None:
    context.run_folder.enough.touch()
    outputs = watch(context, trained, Evaluating(context, trained, []))
    assert (outputs["metrics"], outputs["steps"]) == ({}, [])
