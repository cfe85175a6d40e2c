"""What `test_step` logs shard by shard is what Lightning's Trainer tells of the whole split."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryRecall
from torchmetrics.wrappers import MinMaxMetric

from headrace.data.dataset import SampleReader
from headrace.data.model_steps import check_model
from headrace.errors import RecipeError, UserCodeError
from headrace.evaluation.batch_outputs import logged_metrics
from headrace.evaluation.own_results import own_values
from headrace.evaluation.predictor import Predictor
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset

NUM_SAMPLES, SHARD_SAMPLES = 50, 15
BATCHES = (0, 10, 15, 25, 30, 40, 45, 50)


class Judged(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.auroc = BinaryAUROC()
        self.metrics = MetricCollection([BinaryAccuracy(), BinaryRecall()])

    def test_step(self, batch, index):
        errors = (batch["array"] - batch["label"]) ** 2
        self.auroc(batch["array"], batch["label"])
        self.metrics.update(batch["array"], batch["label"])
        self.log("auroc", self.auroc, prog_bar=True)
        self.log_dict(self.metrics)
        self.log("loss", errors.mean())
        self.log("half", errors.mean(), batch_size=2)
        self.log_dict({"total": errors.sum(), "count": float(len(errors))}, reduce_fx="sum")
        self.log("worst", errors.max(), reduce_fx=torch.max)
        self.log("best", errors.min(), reduce_fx="min")
        self.log("nan", torch.tensor(math.nan) if len(errors) == 5 else 1)
        self.log("now", errors.mean(), on_step=True, on_epoch=False)
        return {"loss": errors.mean(), "error": errors}


@pytest.fixture
def split(tmp_path: Path) -> ShardedDataset:
    random = np.random.default_rng(2)
    fields = {
        "array": random.random(NUM_SAMPLES).astype(np.float32),
        "label": random.integers(0, 2, NUM_SAMPLES),
    }
    splits = {"test": NUM_SAMPLES}
    write_dataset(tmp_path / "dataset", fields, splits=splits, shard_samples=SHARD_SAMPLES)
    return ShardedDataset(tmp_path / "dataset", "test")


def of_shards(split: ShardedDataset, model: LightningModule) -> dict[str, float]:
    spec = EvaluateSpec(task="custom", step="test", batch_size=10)
    predictor = Predictor(
        model=model, transforms=(), dataset=split, spec=spec, device=torch.device("cpu")
    )
    starts = range(0, NUM_SAMPLES, SHARD_SAMPLES)
    parts = [
        predictor.predict(start, min(SHARD_SAMPLES, NUM_SAMPLES - start))
        for start in (*starts, 0)  # the first one is tested again
    ][1:]
    parts = [parts[-1], *parts[:-1]]
    assert list(parts[0].columns) == ["error", "label"]
    keys = {key for part in parts for key in part.states}
    fresh = logged_metrics(keys, type(model)())
    return own_values(fresh, [part.states for part in parts], ()).metrics


def by_trainer(split: ShardedDataset, model: LightningModule, folder: Path) -> dict[str, float]:
    reader = SampleReader(split)
    batches = [reader.read(np.arange(*place)) for place in itertools.pairwise(BATCHES)]
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    loader = DataLoader(batches, batch_size=None)
    return dict(trainer.test(model, loader, verbose=False)[0])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_equal_to_the_trainer_of_one_process(split, tmp_path):
    expected = by_trainer(split, Judged(), tmp_path)
    found = of_shards(split, Judged())
    assert set(expected) - set(found) == {"nan"}, "what is undefined is no metric"
    assert math.isnan(expected.pop("nan"))
    assert found == pytest.approx(expected, rel=1e-5)
    assert found["count"] == NUM_SAMPLES
    assert {"BinaryAccuracy", "auroc", "worst"} <= set(found)


class AtTheEnd(Judged):
    def on_test_epoch_end(self):
        self.log("late", self.auroc.compute())


class Wrapped(Judged):
    def test_step(self, batch, index):
        self.log("a", MinMaxMetric(MeanMetric()))


class Twice(Judged):
    def test_step(self, batch, index):
        self.log("a", 1.0)
        self.log("a", 1.0, reduce_fx="sum")


class Median(Judged):
    def test_step(self, batch, index):
        self.log("a", 1.0, reduce_fx=torch.median)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Wrapped, "not an attribute of"),
        (Twice, "'a'.* once by sum"),
        (Median, "reduce_fx"),
    ],
)
def test_what_cannot_be_honoured_is_named(split, model, words):
    with pytest.raises(UserCodeError, match=words):
        of_shards(split, model())


class Bare(LightningModule):
    def training_step(self, batch, index): ...


class OnlyTested(Bare):
    def test_step(self, batch, index): ...


class Calls(Bare):
    def forward(self, batch): ...


def check_steps(model: LightningModule, spec: EvaluateSpec | None) -> None:
    content = {"name": "r", "model": {"_target_": "a.Model"}, "evaluate": spec}
    data = {"name": "d", "path": "/d"}
    check_model(model, Recipe.model_validate({**content, "dataset": data}), trains=False)


def test_models_that_evaluation_cannot_ask_are_refused_as_soon_as_they_are_made():
    test, predict = EvaluateSpec(step="test", task="custom"), EvaluateSpec()
    with pytest.raises(RecipeError, match="AtTheEnd has on_test_epoch_end"):
        check_steps(AtTheEnd(), test)
    with pytest.raises(RecipeError, match=r"The model Calls has no test_step"):
        check_steps(Calls(), test)
    with pytest.raises(
        RecipeError, match="OnlyTested has neither predict_step nor forward"
    ) as told:
        check_steps(OnlyTested(), predict)
    assert "Set evaluate.step: test and evaluate.task: custom" in told.value.hint
    with pytest.raises(RecipeError, match="Bare has neither predict_step nor forward") as told:
        check_steps(Bare(), predict)
    assert "evaluate.step: test" not in told.value.hint
    given = Bare()
    given.predict_step = lambda batch, index: batch
    for model, spec in ((OnlyTested(), test), (Calls(), predict), (given, predict), (Bare(), None)):
        check_steps(model, spec)


def test_a_test_goes_with_a_task_of_ones_own():
    with pytest.raises(ValueError, match="goes with task: custom"):
        EvaluateSpec(step="test")
