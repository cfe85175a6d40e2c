"""Evaluations are checked before anything runs; checkpoints are evaluated as they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DataError, ManifestError, RecipeError
from headrace.evaluation import evaluate_step
from headrace.evaluation.evaluate_step import watch
from headrace.evaluation.evaluation_plan import ShardTask, plan, read_inputs, trained_in
from headrace.files.layout import RunFolder, checkpoint_name
from headrace.files.lines import append_line
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.recipe.evaluate import EvaluateSpec
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


MEAN = {"_target_": "torchmetrics.MeanMetric"}


def manifest(*samples: int, fields: tuple[str, ...] = ("image", "label")) -> Manifest:
    shards = tuple(
        ShardInfo(
            file=f"shards/test-{i:05d}.h5", split="test", num_samples=n, num_bytes=1, xxh3_128=""
        )
        for i, n in enumerate(samples)
    )
    infos = tuple(FieldInfo(name=name, dtype="uint8", layout="fixed") for name in fields)
    return Manifest(
        name="d", fingerprint="f", pack_key="", fields=infos, splits={"test": sum(samples)},
        shards=shards,
    )  # fmt: skip


def test_one_task_a_shard():
    tasks = plan(manifest(5, 3), EvaluateSpec(split="test"))
    assert tasks == (
        ShardTask(file="shards/test-00000.h5", first=0, num_samples=5),
        ShardTask(file="shards/test-00001.h5", first=5, num_samples=3),
    )
    assert tasks[1].part_name == "shards-test-00001.pt"


@pytest.mark.parametrize(
    ("found", "spec", "error", "words"),
    [
        (manifest(5), EvaluateSpec(split="tset"), ManifestError, "Did you mean 'test'"),
        (manifest(), EvaluateSpec(split="test"), DataError, "is empty"),
        (manifest(5, fields=("image",)), EvaluateSpec(split="test"), DataError, "no labels"),
        (manifest(5), EvaluateSpec(min_metrics={"acuracy": 1}), RecipeError, "mean 'accuracy'"),
        (manifest(5), EvaluateSpec(min_metrics={"calibration_error": 1}), RecipeError, "higher"),
        (
            manifest(5),
            EvaluateSpec(task="regression", min_metrics={"mae": 1}),
            RecipeError,
            "Valid: r2",
        ),
        (manifest(5), EvaluateSpec(max_metrics={"accuracy": 1}), RecipeError, "lower"),
        (manifest(5), EvaluateSpec(task="multilabel"), DataError, "of the shape ()"),
        (
            manifest(5).model_copy(update={"classes": ("a", "b", "c")}),
            EvaluateSpec(task="binary", min_metrics={"average_precision": 1}),
            DataError,
            "has 3 classes",
        ),
        (manifest(5), EvaluateSpec(metrics={"f1": MEAN}), RecipeError, "Give it another name"),
        (
            manifest(5),
            EvaluateSpec(task="custom", metrics={"iou": MEAN}, min_metrics={"iuo.cat": 1}),
            RecipeError,
            "iou",
        ),
    ],
)
def test_errors_teach(found, spec, error, words):
    with pytest.raises(error) as caught:
        plan(found, spec)
    assert words in str(caught.value)


def test_a_task_of_ones_own_needs_no_labels():
    spec = EvaluateSpec(
        task="custom",
        metrics=[MEAN, {"_target_": "torchmetrics.text.Perplexity"}],
        min_metrics={"MeanMetric": 0.5},
        max_metrics={"Perplexity": 3, "MeanMetric.cat": 1},
    )
    assert list(spec.metrics) == ["MeanMetric", "Perplexity"]
    assert len(plan(manifest(5, fields=("image",)), spec)) == 1
    with pytest.raises(ValueError, match="two of them are named 'MeanMetric'"):
        EvaluateSpec(metrics=[MEAN, MEAN])
    with pytest.raises(ValueError, match="needs '_target_'"):
        EvaluateSpec(metrics=["torchmetrics.MeanMetric"])


def test_variants_of_one_name_have_reports_of_their_own():
    spec = EvaluateSpec(checkpoint="/a/final.ckpt", also_checkpoints=["/b/final.ckpt", 7, "last"])
    labels = [each.label for each in spec.variants]
    assert len(set(labels)) == 4
    assert labels[2:] == ["test-7", "test-last"]
    assert all("/" not in label for label in labels)


def evaluating(folder: Path, checkpoint: object, **given: str) -> StepContext:
    recipe = make_recipe(
        {
            "model": {"_target_": "torch.nn.Identity"},
            "trainer": {"monitor": "val_loss"},
            "evaluate": {"checkpoint": checkpoint},
        }
    )
    context = make_context(folder, recipe, make_site(folder))
    inputs = {"dataset": "/d", "checkpoint": "/c/final.ckpt", **given}
    return replace(context, spec=context.spec.model_copy(update={"inputs": inputs}))


def test_the_recipe_chooses_the_checkpoint(tmp_path: Path):
    best = {"best_checkpoint": "/c/best-000000010.ckpt"}
    assert read_inputs(evaluating(tmp_path, "last", **best)).checkpoint.name == "final.ckpt"
    context = evaluating(tmp_path, "best", **best)
    assert str(read_inputs(context).checkpoint) == best["best_checkpoint"]
    kept = context.run_folder.checkpoints / "step-000000020.ckpt"
    kept.parent.mkdir()
    kept.touch()
    assert read_inputs(evaluating(tmp_path, 20)).checkpoint == kept
    kept = kept.with_name("kept-000000025.ckpt")
    kept.touch()
    assert read_inputs(evaluating(tmp_path, 25)).checkpoint == kept
    assert read_inputs(evaluating(tmp_path, str(kept))).checkpoint == kept
    with pytest.raises(RecipeError, match=r"but /no/such\.ckpt does not exist"):
        read_inputs(evaluating(tmp_path, "/no/such.ckpt"))
    with pytest.raises(RecipeError, match=r"checkpoint is 30, but .* does not exist") as caught:
        read_inputs(evaluating(tmp_path, 30))
    assert "step-000000020.ckpt" in caught.value.hint
    with pytest.raises(RecipeError, match="'val_loss' was no number in any validation"):
        read_inputs(evaluating(tmp_path, "best", best_checkpoint=""))


def test_a_checkpoint_of_another_run_has_the_history_of_that_one(tmp_path):
    context = evaluating(tmp_path, "last")
    other = RunFolder(tmp_path / "runs" / "other")
    for checkpoint in (other.checkpoints / "final.ckpt", tmp_path / "mine.ckpt"):
        assert trained_in(context, checkpoint) == context.run_folder
    other.path.mkdir()
    other.recipe.touch()
    assert trained_in(context, other.checkpoints / "final.ckpt") == other
    watched = context.spec.model_copy(update={"inputs": {"watched": str(other.path)}})
    assert trained_in(replace(context, spec=watched), tmp_path / "x.ckpt") == other
