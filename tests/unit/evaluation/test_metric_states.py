"""Each sample is counted once, and metrics of shards are merged as if one had seen the split."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from pyarrow import parquet
from torchmetrics import Metric, classification, regression, retrieval, segmentation, wrappers
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.text import Perplexity, WordErrorRate

from headrace.data.instantiate import Allowed
from headrace.errors import StepError, TargetError, UserCodeError
from headrace.evaluation.batch_outputs import update
from headrace.evaluation.merge import (
    ScoredSamples,
    check_mergeable,
    joined,
    merge,
    merged,
    read_part,
    results_of,
    state_of,
    write_part,
    write_results,
)
from headrace.evaluation.own_results import make_metrics, own_values
from headrace.recipe.evaluate import EvaluateSpec

NUM_SAMPLES = 24
SHARDS = (range(7), range(7, 8), range(8, 24))
BATCH = 4


def samples() -> dict[str, Any]:
    random = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (NUM_SAMPLES,), generator=random)
    values = torch.randn(NUM_SAMPLES, generator=random)
    true = [torch.rand(1 + index % 3, 4, generator=random) for index in range(NUM_SAMPLES)]
    found = [boxes.repeat(index % 4, 1) + 0.1 for index, boxes in enumerate(true)]
    masks = torch.randint(0, 3, (2, NUM_SAMPLES, 4, 4), generator=random)
    return {
        "binary": {"preds": torch.sigmoid(values + target), "target": target},
        "value": {"value": values, "weight": values.abs()},
        "regression": {"preds": values, "target": values * 0.5 + target},
        "retrieval": {
            "preds": torch.sigmoid(values),
            "target": target,
            "indexes": torch.arange(NUM_SAMPLES) // 3,
        },
        "tokens": {
            "preds": torch.randn(NUM_SAMPLES, 5, 7, generator=random),
            "target": torch.randint(0, 7, (NUM_SAMPLES, 5), generator=random),
        },
        "masks": {"preds": masks[0], "target": masks[1]},
        "text": {
            "preds": [f"one {index % 5} three" for index in range(NUM_SAMPLES)],
            "target": ["one 2 three"] * NUM_SAMPLES,
        },
        "boxes": {
            "preds": [{"boxes": boxes} for boxes in found],
            "target": [{"boxes": boxes} for boxes in true],
        },
        "images": {"preds": masks[0] / 3, "target": masks[1] / 3},
    }


class HitsByPicture(Metric):
    """As metrics of detection keep boxes: a tensor a picture, of any length, in lists."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("detection_box", "groundtruth_box"):
            self.add_state(name, [], dist_reduce_fx=None)

    def update(self, preds, target):
        self.detection_box += [each["boxes"] for each in preds]
        self.groundtruth_box += [each["boxes"] for each in target]

    def compute(self):
        pictures = zip(self.detection_box, self.groundtruth_box, strict=True)
        hits = [(torch.cdist(found, true) < 0.5).sum() for found, true in pictures if len(found)]
        return torch.stack(hits).sum() / sum(map(len, self.groundtruth_box))


METRICS = {
    "boxes": ("boxes", HitsByPicture),
    "auroc by lists": ("binary", classification.BinaryAUROC),
    "auroc by bins": ("binary", lambda: classification.BinaryAUROC(thresholds=20)),
    "accuracy": ("binary", classification.BinaryAccuracy),
    "confusion": ("binary", classification.BinaryConfusionMatrix),
    "mean": ("value", torchmetrics.MeanMetric),
    "largest": ("value", torchmetrics.MaxMetric),
    "kept": ("value", torchmetrics.CatMetric),
    "r2": ("regression", regression.R2Score),
    "pearson": ("regression", regression.PearsonCorrCoef),
    "spearman": ("regression", regression.SpearmanCorrCoef),
    "map": ("retrieval", retrieval.RetrievalMAP),
    "perplexity": ("tokens", Perplexity),
    "iou": ("masks", lambda: segmentation.MeanIoU(3, per_class=True, input_format="index")),
    "dice": ("masks", lambda: segmentation.DiceScore(3, input_format="index")),
    "words": ("text", WordErrorRate),
    "psnr": ("images", lambda: PeakSignalNoiseRatio(data_range=1.0)),
    "by class": (
        "masks",
        lambda: wrappers.ClasswiseWrapper(
            classification.MulticlassAccuracy(3, average=None), labels=["a", "b", "c"]
        ),
    ),
}
IN_ORDER = {"kept"}
"""Metrics whose value is the samples themselves."""


def seen(metric: Metric, given: Mapping[str, Any], rows: range) -> Metric:
    for first in range(rows.start, rows.stop, BATCH):
        batch = slice(first, min(first + BATCH, rows.stop))
        update({"m": metric}, {name: value[batch] for name, value in given.items()})
    return metric


def stored(state: Any) -> Any:
    """As it comes back from a file."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.filterwarnings("ignore:.*will save all:UserWarning")
@pytest.mark.parametrize("name", METRICS)
def test_equal_to_one_metric_of_the_whole_split(name):
    kind, make = METRICS[name]
    given = samples()[kind]
    expected = seen(make(), given, range(NUM_SAMPLES)).compute()
    states = [stored(state_of(name, seen(make(), given, rows))) for rows in SHARDS]
    check_mergeable(name, make())
    torch.testing.assert_close(merged(make(), states).compute(), expected)
    orders = () if name in IN_ORDER else itertools.permutations(states)
    for order in orders:
        torch.testing.assert_close(merged(make(), order).compute(), expected)


class Means(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, preds):
        self.mean = preds.mean()

    def compute(self):
        return self.mean


class Words(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", [], dist_reduce_fx=None)

    def update(self, preds):
        self.seen.append("a word")

    def compute(self):
        return 0


def test_what_cannot_be_put_together_is_named():
    for metric, words in ((Means(), "'m' keeps a mean in 'mean'"), (Words(), "other things than")):
        metric.update(torch.ones(2))
        with pytest.raises(UserCodeError, match=words):
            state_of("m", metric)
    spec = EvaluateSpec(
        metrics={
            "m": {
                "_target_": "torchmetrics.wrappers.BootStrapper",
                "base_metric": {"_target_": "torchmetrics.MeanMetric"},
            }
        }
    )
    with pytest.raises(UserCodeError, match=r"'m' is a BootStrapper[^$]* ClasswiseWrapper"):
        make_metrics(spec, Allowed(listed=()))


def test_only_metrics_are_metrics():
    for target in ("torch.nn.Linear", "torchmetrics.text.bert.BERTScore", "os.getcwd"):
        with pytest.raises(TargetError, match=r"evaluate\.metrics\.m"):
            make_metrics(EvaluateSpec(metrics={"m": {"_target_": target}}), Allowed(listed=()))


def test_a_metric_is_given_what_it_takes():
    metrics = {
        "loss": torchmetrics.MeanMetric(),
        "weighted": torchmetrics.MeanMetric(),
        "accuracy": classification.BinaryAccuracy(),
    }
    ones = torch.ones(2)
    given = {
        "loss": torch.tensor([1.0, 3.0]),
        "weighted": {"value": torch.tensor([0.0, 4.0]), "weight": torch.tensor([3.0, 1.0])},
        "preds": ones,
        "target": ones,
        "indexes": ones,
    }
    update(metrics, given)
    assert [float(metric.compute()) for metric in metrics.values()] == [2, 1, 1]
    accuracy = {"accuracy": classification.BinaryAccuracy()}
    with pytest.raises(UserCodeError, match=r"takes \(preds, target\), but the model gave preds:"):
        update(accuracy, {"preds": ones})
    with pytest.raises(UserCodeError, match="'accuracy' raised RuntimeError") as told:
        update(accuracy, {"preds": ones, "target": torch.ones(3)})
    assert "in update" in told.value.trace


class Many(torchmetrics.SumMetric):
    def compute(self):
        return {
            "map": super().compute(),
            "by_class": torch.tensor([0.5, float("nan"), 1]),
            "pair": torch.tensor([1.0, 2.0]),
            "matrix": torch.eye(3),
            "curve": (torch.ones(2), torch.ones(3)),
        }


def test_values_have_names_and_tables():
    states = []
    for value in (1.0, 2.0):
        metric = Many()
        metric.update(value)
        states.append({"m": state_of("m", metric)})
    found = own_values({"m": Many()}, states, ("cat", "dog", "owl"))
    assert found.metrics == {
        "m.map": 3.0,
        "m.by_class.cat": 0.5,
        "m.by_class.owl": 1.0,
        "m.pair.0": 1.0,
        "m.pair.1": 2.0,
    }
    tables = {table.title: table for table in found.tables}
    assert tables["m.by_class"].rows == [("cat", "0.5"), ("dog", "nan"), ("owl", "1")]
    assert [column.name for column in tables["m.matrix"].columns] == ["", "cat", "dog", "owl"]
    assert tables["m.matrix"].rows[1] == ("dog", "0", "1", "0")
    assert "a tuple: draw it by a figure" in tables["m.curve"].empty


def part(*ids: int) -> ScoredSamples:
    sample_id = torch.tensor(ids, dtype=torch.int64)
    scores = torch.stack([sample_id, -sample_id], 1).float()
    texts = [f"text {number}" for number in ids]
    columns = {"preds": scores, "label": sample_id % 3, "text": texts}
    return ScoredSamples(sample_id.numpy(), columns, {"m": {"": (1, {"total": sample_id.sum()})}})


def test_sorted_by_sample_id_whatever_the_order():
    expected = np.arange(6)
    first = merge([part(0, 4), part(2, 1), part(5, 3)], expected)
    second = merge([part(5, 3), part(1), part(2), part(0, 4)], expected)
    for found in (first, second):
        np.testing.assert_array_equal(found.sample_id, expected)
        np.testing.assert_array_equal(found.predictions.scores[:, 0], expected)
        np.testing.assert_array_equal(found.predictions.label, expected % 3)
        assert found.columns["text"] == [f"text {number}" for number in range(6)]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(0, 1, 2)], r"Not all of 5 samples .* once: 2 missing \(sample ids 3, 4\)"),
        ([part(0, 1, 2), part(2, 3, 4)], "1 counted more than once \\(sample ids 2\\)"),
        ([part(0, 1, 1, 3, 4)], "1 missing .*2.*; 1 counted more than once .*1"),
        ([part(*range(5)), part(77)], "1 not of this split \\(sample ids 77\\)"),
        ([], "5 missing \\(sample ids 0, 1, 2, 3, 4\\)"),
    ],
)
def test_missing_and_doubled_samples_are_named(parts, words):
    """Pains 49."""
    with pytest.raises(StepError, match=words):
        merge(parts, np.arange(5))


def test_many_examples_are_cut():
    with pytest.raises(StepError, match=r"95 missing .sample ids 5, 6, 7, 8, 9, …"):
        merge([part(*range(5))], np.arange(100))


def test_results_that_only_some_samples_have_are_named():
    with pytest.raises(StepError, match="results preds, label, text, others preds"):
        merge([part(0), ScoredSamples(np.array([1]), {"preds": torch.zeros(1)})], np.arange(2))


def test_a_part_comes_back_as_it_was_written(tmp_path):
    write_part(tmp_path / "a.pt", part(1, 2))
    found = read_part(tmp_path / "a.pt")
    np.testing.assert_array_equal(found.sample_id, [1, 2])
    torch.testing.assert_close(found.columns["preds"], part(1, 2).columns["preds"])
    assert found.columns["text"] == ["text 1", "text 2"]
    assert found.states == {"m": {"": (1, {"total": torch.tensor(3)})}}
    with pytest.raises(StepError, match=r"gone\.pt are missing"):
        read_part(tmp_path / "gone.pt")


def test_results_of_samples_are_rows_of_parquet(tmp_path):
    whole = merge([part(1, 0), part(2)], np.arange(3))
    whole.columns["boxes"] = joined([torch.ones(1, 2), torch.zeros(2, 3)])
    for name in ("a", "b"):
        write_results(tmp_path / name, results_of(whole, ["x.png", "y.png", "z.png"], "test"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = parquet.read_table(tmp_path / "a").to_pylist()
    assert found[1] == {
        "sample_id": 1,
        "source": "y.png",
        "split": "test",
        "preds": [1.0, -1.0],
        "label": 1,
        "text": "text 1",
        "boxes": [0.0, 0.0, 0.0],
    }
