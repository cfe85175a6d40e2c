"""What evaluation will do is checked before anything runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import DataError, ManifestError, RecipeError
from headrace.evaluation.evaluation_plan import ShardTask, plan, read_inputs, trained_in
from headrace.files.layout import RunFolder
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.recipe.evaluate import EvaluateSpec
from headrace.steps.context import StepContext
from support.training import make_context, make_recipe, make_site

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
