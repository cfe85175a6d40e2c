"""The report: whole, escaped, without network."""

import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from headrace.evaluation.conclude import sample_ids
from headrace.evaluation.figures import classification_figures, confusion_matrix
from headrace.evaluation.judge import cards, classification_mistakes, confused_pairs, judge, to_png
from headrace.evaluation.metrics import Predictions, classification_result
from headrace.evaluation.plan import shortfalls
from headrace.evaluation.report import Report, render
from headrace.recipe.evaluate import EvaluateSpec
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset

NAMES = ("ant", "bee", "<cow>")


def predictions(num_samples: int = 90, num_classes: int = 3) -> Predictions:
    random = np.random.default_rng(0)
    label = np.arange(num_samples) % num_classes
    scores = random.normal(size=(num_samples, num_classes)) + np.eye(num_classes)[label]
    return Predictions(sample_id=np.arange(num_samples) + 10, label=label, scores=scores)


@pytest.fixture
def dataset(tmp_path):
    random = np.random.default_rng(0)
    fields = {
        "image": random.integers(0, 255, (100, 8, 8)).astype(np.uint8),
        "label": np.arange(100) % 3,
    }
    splits = {"train": 10, "test": 90}
    write_dataset(tmp_path / "dataset", fields, splits=splits, classes=NAMES)
    return ShardedDataset(tmp_path / "dataset", "test")


def as_html(dataset: ShardedDataset) -> str:
    spec = EvaluateSpec(min_metrics={"accuracy": 0.99})
    judgement = judge(predictions(), dataset, sample_ids(dataset), spec)
    return render(
        Report(
            title="Evaluation of <digits>",
            lead="90 samples",
            cards=cards(judgement.metrics, spec),
            figures=judgement.figures,
            tables=judgement.tables,
            failures=shortfalls(judgement.metrics, spec),
        )
    )


class Resources(HTMLParser):
    """Collects everything that a browser would load, and whether tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_report_is_self_contained(dataset):
    html = as_html(dataset)
    parser = Resources()
    parser.feed(html)
    assert parser.open == []
    assert len(parser.found) > 4
    assert all(value.startswith("data:image/png;base64,") for value in parser.found)
    assert not re.search(r"https?:|@import|url\(|<script|<link", html)


def test_report_escapes_what_comes_from_data(dataset):
    html = as_html(dataset)
    assert "<cow>" not in html
    assert "&lt;cow&gt;" in html
    assert "folder/&lt;" in html


def test_report_tells_what_is_missed(dataset):
    html = as_html(dataset)
    assert re.search(r'class="bad">accuracy is 0\.\d+, at least 0.99 was asked for', html)
    assert 'class="card bad"' in html


def test_figures_are_pictures_and_the_same_each_time():
    result = classification_result(predictions(), NAMES)
    figures = classification_figures(result, predictions().label)
    assert set(figures) == {"Confusion matrix", "ROC curves", "Precision and recall", "Reliability"}
    again = classification_figures(result, predictions().label)
    for title, content in figures.items():
        with Image.open(BytesIO(content)) as image:
            assert min(image.size) > 400
            assert len(image.convert("RGB").getcolors(10**6)) > 10
        assert content == again[title]


def test_many_classes_are_drawn_without_names():
    confusion = np.diag(np.arange(200))
    with Image.open(BytesIO(confusion_matrix(confusion, [str(i) for i in range(200)]))) as image:
        assert image.format == "PNG"


def test_regression_report(dataset):
    values = np.random.default_rng(0).normal(size=90)
    given = Predictions(sample_id=np.arange(90) + 10, label=np.arange(90) % 3, scores=values)
    judgement = judge(given, dataset, sample_ids(dataset), EvaluateSpec(task="regression"))
    assert set(judgement.metrics) == {"mae", "rmse", "r2"}
    assert [table.title for table in judgement.tables] == ["Largest errors"]
    errors = [float(row[4]) for row in judgement.tables[0].rows]
    assert errors == sorted(errors, reverse=True)
    for content in judgement.figures.values():
        with Image.open(BytesIO(content)) as image:
            assert image.format == "PNG"


def test_mistakes_are_the_most_confident_ones():
    result = classification_result(predictions(), NAMES)
    mistakes = classification_mistakes(predictions(), result)
    weights = [each.weight for each in mistakes]
    assert weights == sorted(weights, reverse=True)
    wrong = result.predicted != predictions().label
    assert weights[0] == result.probabilities.max(1)[wrong].max()
    assert len(mistakes) == min(20, wrong.sum())
    assert all(each.true != each.predicted for each in mistakes)


def test_confused_pairs_worst_first():
    result = classification_result(predictions(), NAMES)
    pairs = confused_pairs(result)
    counts = [pair.num_samples for pair in pairs]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == (result.predicted != predictions().label).sum()
    assert pairs[0].share == pairs[0].num_samples / 30


def test_mistakes_carry_source_and_picture(dataset):
    table = judge(predictions(), dataset, sample_ids(dataset), EvaluateSpec()).tables[-1]
    image, source, *_, sample_id = table.rows[0]
    assert source == f"folder/<{sample_id}>.png"
    with Image.open(BytesIO(image)) as picture:
        expected = dataset.gather("image", np.array([int(sample_id) - 10]))[0]
        np.testing.assert_array_equal(np.asarray(picture), expected)


@pytest.mark.parametrize("shape", [(8,), (8, 8, 2), (1, 8), (2, 8, 8, 3)])
def test_other_arrays_have_no_picture(shape):
    assert to_png(np.zeros(shape, np.uint8)) is None
    assert to_png(np.zeros((8, 8), np.float32)) is None


def test_large_pictures_are_made_small():
    with Image.open(BytesIO(to_png(np.zeros((300, 600, 3), np.uint8)))) as image:
        assert image.size == (96, 48)


def test_undefined_metric_is_a_shortfall():
    spec = EvaluateSpec(min_metrics={"auroc": 0.9, "accuracy": 1.0})
    assert shortfalls({"accuracy": 1.0}, spec) == (
        "auroc is undefined on this split, at least 0.9 was asked for",
    )
