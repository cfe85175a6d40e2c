"""Metrics agree with scikit-learn and torchmetrics; figures of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torchmetrics import classification

from headrace.data.instantiate import Allowed
from headrace.errors import EvaluationError, TargetError, UserCodeError
from headrace.evaluation.metrics import (
    Predictions,
    classification_result,
    regression_metrics,
    to_probabilities,
)
from headrace.evaluation.own_results import own_figures
from headrace.evaluation.results import judge
from headrace.evaluation.write_report import cards, sample_ids
from headrace.recipe.evaluate import EvaluateSpec
from headrace.report.html import Report, render
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset

NAMES = ("ant", "bee", "cow", "dog")


def classifier(num_samples: int = 400, num_classes: int = 4, seed: int = 0) -> Predictions:
    random = np.random.default_rng(seed)
    label = random.integers(0, num_classes, num_samples)
    scores = random.normal(size=(num_samples, num_classes)) + 1.5 * np.eye(num_classes)[label]
    return Predictions(
        sample_id=np.arange(num_samples), label=label, scores=scores.astype(np.float32)
    )


def test_classification_as_scikit_learn():
    predictions = classifier()
    result = classification_result(predictions, NAMES)
    label, predicted = predictions.label, predictions.scores.argmax(1)
    macro = {"average": "macro"}
    expected = {
        "accuracy": reference.accuracy_score(label, predicted),
        "precision": reference.precision_score(label, predicted, **macro),
        "recall": reference.recall_score(label, predicted, **macro),
        "f1": reference.f1_score(label, predicted, **macro),
        "auroc": reference.roc_auc_score(label, result.probabilities, multi_class="ovr"),
    }
    found = {name: result.metrics[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    np.testing.assert_array_equal(result.confusion, reference.confusion_matrix(label, predicted))
    table = reference.classification_report(label, predicted, target_names=NAMES, output_dict=True)
    for each in result.classes:
        row = table[each.name]
        assert each.support == row["support"]
        assert (each.precision, each.recall, each.f1) == pytest.approx(
            (row["precision"], row["recall"], row["f1-score"]), abs=1e-6
        )


def test_auroc_of_tied_scores_as_scikit_learn():
    given = classifier()
    tied = np.round(to_probabilities(given.scores) * 4)
    scores = (tied + 1) / (tied + 1).sum(1, keepdims=True)
    result = classification_result(Predictions(given.sample_id, given.label, scores), NAMES)
    for index, each in enumerate(result.classes):
        expected = reference.roc_auc_score(given.label == index, scores[:, index])
        assert each.auroc == pytest.approx(expected, abs=1e-12)
    assert len(np.unique(scores[:, 0])) < 40


def test_calibration_error_by_its_definition():
    predictions = classifier()
    result = classification_result(predictions, NAMES)
    confidence, correct = result.probabilities.max(1), result.predicted == predictions.label
    places = np.digitize(confidence, np.linspace(0, 1, 16))
    gaps = [
        abs(confidence[places == place].mean() - correct[places == place].mean())
        * (places == place).mean()
        for place in np.unique(places)
    ]
    assert result.metrics["calibration_error"] == pytest.approx(sum(gaps), abs=1e-6)


def test_regression_as_scikit_learn():
    random = np.random.default_rng(0)
    label = random.integers(-5, 5, 100)
    scores = (label + random.normal(size=100)).astype(np.float32)
    predictions = Predictions(sample_id=np.arange(100), label=label, scores=scores)
    assert regression_metrics(predictions) == pytest.approx(
        {
            "mae": reference.mean_absolute_error(label, scores),
            "rmse": reference.root_mean_squared_error(label, scores),
            "r2": reference.r2_score(label, scores),
        },
        abs=1e-6,
    )


def test_probabilities_are_taken_as_they_are():
    given = np.array([[0.25, 0.75], [1.0, 0.0]])
    np.testing.assert_array_equal(to_probabilities(given), given)
    softmax = to_probabilities(np.array([[1000.0, 0.0], [0.3, 0.3]]))
    np.testing.assert_allclose(softmax, [[1, 0], [0.5, 0.5]])


def test_class_without_samples_has_no_auroc():
    predictions = classifier(num_classes=3)
    scores = np.pad(predictions.scores, ((0, 0), (0, 1)), constant_values=-9)
    padded = Predictions(sample_id=predictions.sample_id, label=predictions.label, scores=scores)
    result = classification_result(padded, NAMES)
    assert result.classes[3].auroc is None
    assert result.classes[3].support == 0
    expected = np.mean([each.auroc for each in result.classes[:3]])
    assert result.metrics["auroc"] == pytest.approx(expected)


def test_only_one_class_present():
    predictions = Predictions(
        sample_id=np.arange(2), label=np.zeros(2, np.int64), scores=np.eye(2, dtype=np.float32)
    )
    assert "auroc" not in classification_result(predictions, ("a", "b")).metrics


def test_nan_scores_are_named():
    predictions = classifier()
    predictions.scores[[3, 7], 1] = np.nan
    with pytest.raises(EvaluationError, match=r"2 of 400 samples \(sample ids 3, 7\)"):
        classification_result(predictions, NAMES)


@pytest.mark.parametrize(
    ("label", "words"),
    [(np.array([0, 9]), "reach from 0 to 9"), (np.array([0.5, 1.0]), "float64")],
)
def test_labels_that_do_not_fit(label, words):
    predictions = Predictions(
        sample_id=np.arange(2), label=label, scores=np.eye(2, dtype=np.float32)
    )
    with pytest.raises(EvaluationError, match=words):
        classification_result(predictions, ("a", "b"))


def test_one_sample_is_no_regression():
    one = Predictions(sample_id=np.zeros(1, np.int64), label=np.zeros(1), scores=np.zeros(1))
    with pytest.raises(EvaluationError, match="at least two samples"):
        regression_metrics(one)


NUM_SAMPLES, NUM_LABELS = 40, 3


@pytest.fixture
def dataset(tmp_path):
    fields = {"array": np.zeros(NUM_SAMPLES), "label": np.zeros(NUM_SAMPLES, np.int64)}
    write_dataset(tmp_path / "dataset", fields, splits={"test": NUM_SAMPLES})
    return ShardedDataset(tmp_path / "dataset", "test")


def of_labels(*shape: int, kind: type = np.int64) -> Predictions:
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
    given = of_labels(kind=kind)
    found = judged(given, dataset, "binary")
    expected = by_torchmetrics("Binary", given)
    assert 0 < found.metrics.pop("calibration_error") < 1
    assert found.metrics == pytest.approx(expected, abs=1e-6)
    assert found.tables[0].title == "Classes"
    told = {card.name: card.note for card in cards(found.metrics, EvaluateSpec(task="binary"))}
    assert told["F1"] == "of the second class"


def test_multilabel(dataset):
    given = of_labels(NUM_LABELS)
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
    given = of_labels(NUM_LABELS)
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


CODE = """
from matplotlib.figure import Figure

def errors(results, bins=3):
    figure = Figure()
    figure.add_subplot().hist(results["preds"] - results["label"], bins=bins)
    return figure

def page(results, word):
    return f"<b title='{word}'>{len(results['source'])}</b><script>parent.harm()</script>"

def number(results):
    return 3

def text(results):
    return b"no png"

def broken(results):
    return results["nothing"]
"""

RESULTS = {
    "sample_id": torch.arange(3),
    "source": ["a", "b", "c"],
    "preds": torch.tensor([0.5, 1, 2]),
    "label": torch.tensor([0, 1, 1]),
}


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Allowed]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "figures_of_the_user.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(folder)
        yield Allowed(listed=(), code=(folder,))


def drawing(name: str, **arguments: object) -> EvaluateSpec:
    target = {"_target_": f"figures_of_the_user.{name}", **arguments}
    return EvaluateSpec(figures={name: target})


class Frames(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[dict[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))


def test_images_and_pages_come_into_the_report(allowed):
    image = own_figures(drawing("errors", bins=5), allowed, RESULTS).figures["errors"]
    assert image.startswith(b"\x89PNG")
    pages = own_figures(drawing("page", word='"quoted"'), allowed, RESULTS).pages
    html = render(
        Report(title="t", lead="", cards=(), figures={"errors": image}, tables=(), pages=pages)
    )
    found = Frames()
    found.feed(html)
    (frame,) = found.frames
    assert frame["sandbox"] is None, "nothing is allowed to it"
    assert "script" not in found.tags
    assert "default-src 'none'" in frame["srcdoc"]
    assert frame["srcdoc"].endswith(pages["page"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number", "'number' gave int"),
        ("text", "'text' gave NoneType"),
        ("broken", "'broken' raised KeyError: 'nothing'"),
    ],
)
def test_what_is_no_figure_is_named(allowed, name, words):
    with pytest.raises(UserCodeError, match=words) as told:
        own_figures(drawing(name), allowed, RESULTS)
    assert "in broken" in told.value.trace or name != "broken"


def test_only_code_of_the_user_draws():
    for target in ("os.getcwd", "torch.nn.Linear", "matplotlib.pyplot.figure"):
        with pytest.raises(TargetError, match=r"evaluate\.figures\.f"):
            own_figures(
                EvaluateSpec(figures={"f": {"_target_": target}}), Allowed(listed=()), RESULTS
            )
