"""Yes or no, once a sample or once a label: as metrics of torchmetrics say."""

import numpy as np
import pytest
import torch
from torchmetrics import classification

from headrace.errors import EvaluationError
from headrace.evaluation.metrics import Predictions
from headrace.evaluation.results import judge
from headrace.evaluation.write_report import cards, sample_ids
from headrace.recipe.evaluate import EvaluateSpec
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset

NUM_SAMPLES, NUM_LABELS = 40, 3


@pytest.fixture
def dataset(tmp_path):
    fields = {"array": np.zeros(NUM_SAMPLES), "label": np.zeros(NUM_SAMPLES, np.int64)}
    write_dataset(tmp_path / "dataset", fields, splits={"test": NUM_SAMPLES})
    return ShardedDataset(tmp_path / "dataset", "test")


def predictions(*shape: int, kind: type = np.int64) -> Predictions:
    random = np.random.default_rng(4)
    label = random.integers(0, 2, (NUM_SAMPLES, *shape))
    scores = (random.normal(size=label.shape) + label).astype(np.float32)
    return Predictions(np.arange(NUM_SAMPLES), label.astype(kind), scores)


def judged(given: Predictions, dataset: ShardedDataset, task: str):
    return judge(given, dataset, sample_ids(dataset), EvaluateSpec(task=task))


def by_torchmetrics(prefix: str, given: Predictions, *args: int) -> dict[str, float]:
    kinds = {
        "accuracy": "Accuracy", "precision": "Precision", "recall": "Recall", "f1": "F1Score",
        "auroc": "AUROC", "average_precision": "AveragePrecision",
    }  # fmt: skip
    found = {}
    for name, kind in kinds.items():
        metric = getattr(classification, f"{prefix}{kind}")(*args)
        target = torch.from_numpy(given.label.astype(np.int64))
        found[name] = float(metric(torch.from_numpy(given.scores), target))
    return found


@pytest.mark.parametrize("kind", [np.int64, np.bool_])
def test_binary(dataset, kind):
    given = predictions(kind=kind)
    found = judged(given, dataset, "binary")
    expected = by_torchmetrics("Binary", given)
    assert 0 < found.metrics.pop("calibration_error") < 1
    assert found.metrics == pytest.approx(expected, abs=1e-6)
    assert found.tables[0].title == "Classes"
    told = {card.name: card.note for card in cards(found.metrics, EvaluateSpec(task="binary"))}
    assert told["F1"] == "of the second class"


def test_multilabel(dataset):
    given = predictions(NUM_LABELS)
    found = judged(given, dataset, "multilabel")
    expected = by_torchmetrics("Multilabel", given, NUM_LABELS)
    right = ((given.scores > 0) == given.label).all(1)
    assert found.metrics == pytest.approx({**expected, "exact_match": right.mean()}, abs=1e-6)
    labels, worst = found.tables
    assert [row[1] for row in labels.rows] == [str(count) for count in given.label.sum(0)]
    assert len(worst.rows) == min(20, (~right).sum())
    assert all(row[2] != row[3] for row in worst.rows)
    assert set(found.figures) == {"ROC curves", "Precision and recall"}


def test_a_label_that_no_sample_has_is_left_out_of_what_it_is_undefined_for(dataset):
    given = predictions(NUM_LABELS)
    given.label[:, 1] = 0
    found = judged(given, dataset, "multilabel")
    assert found.tables[0].rows[1][-1] == "undefined"
    each = classification.MultilabelAUROC(NUM_LABELS, average=None)
    with pytest.warns(UserWarning, match="No positive samples"):
        values = each(torch.from_numpy(given.scores), torch.from_numpy(given.label))
    assert found.metrics["auroc"] == pytest.approx(float(values[[0, 2]].mean()), abs=1e-6)


@pytest.mark.parametrize(
    ("label", "scores", "words"),
    [
        (np.zeros((4, 2)), np.zeros((4, 3)), "needs one of each"),
        (np.full((4, 3), 2), np.zeros((4, 3)), "from 2 to 2"),
        (np.zeros((4, 3)), np.full((4, 3), np.inf), "infinite"),
    ],
)
def test_what_does_not_fit_is_told(dataset, label, scores, words):
    with pytest.raises(EvaluationError, match=words):
        judged(Predictions(np.arange(4), label, scores), dataset, "multilabel")
