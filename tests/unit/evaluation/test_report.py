"""The report: whole, escaped, without network; it says where the model comes from."""

from __future__ import annotations

import os
import re
import signal
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace.evaluation import figures, predict
from headrace.evaluation.evaluation_plan import Inputs, evaluated_step, shortfalls
from headrace.evaluation.figures import classification_figures, confusion_matrix
from headrace.evaluation.metrics import Predictions, classification_result
from headrace.evaluation.model_origin import changes_tables, chosen, provenance_table
from headrace.evaluation.results import Judgement, judge, picture, to_png, to_waveform
from headrace.evaluation.write_report import cards, sample_ids
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.load import load_recipe
from headrace.report.html import Report, png, render
from headrace.shards.dataset import ShardedDataset
from headrace.steps.history import History, HistoryRow
from support.shards import write_dataset

NAMES = ("ant", "bee", "<cow>")


def predictions(num_samples: int = 90, num_classes: int = 3) -> Predictions:
    random = np.random.default_rng(0)
    label = np.arange(num_samples) % num_classes
    scores = random.normal(size=(num_samples, num_classes)) + np.eye(num_classes)[label]
    return Predictions(sample_id=np.arange(num_samples) + 10, label=label, scores=scores)


SPEC = EvaluateSpec(min_metrics={"accuracy": 0.99})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> ShardedDataset:
    folder = tmp_path_factory.mktemp("evaluated") / "dataset"
    random = np.random.default_rng(0)
    fields = {
        "image": random.integers(0, 255, (100, 8, 8)).astype(np.uint8),
        "label": np.arange(100) % 3,
    }
    splits = {"train": 10, "test": 90}
    write_dataset(folder, fields, splits=splits, classes=NAMES)
    return ShardedDataset(folder, "test")


@pytest.fixture(scope="module")
def judgement(dataset: ShardedDataset) -> Judgement:
    return judge(predictions(), dataset, sample_ids(dataset), SPEC)


def as_html(judgement: Judgement) -> str:
    return render(
        Report(
            title="Evaluation of <digits>",
            lead="90 samples",
            cards=cards(judgement.metrics, SPEC),
            figures=judgement.figures,
            tables=judgement.tables,
            failures=shortfalls(judgement.metrics, SPEC),
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


def test_report_is_self_contained_escaped_and_tells_what_is_missed(judgement):
    html = as_html(judgement)
    parser = Resources()
    parser.feed(html)
    assert parser.open == []
    assert len(parser.found) > 4
    assert all(value.startswith("data:image/png;base64,") for value in parser.found)
    assert not re.search(r"https?:|@import|url\(|<script|<link|<cow>", html)
    assert "&lt;cow&gt;" in html
    assert "folder/&lt;" in html
    assert re.search(r'class="bad">accuracy is 0\.\d+, the bound is at least 0.99', html)
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


def test_a_model_that_is_always_right_and_one_sample_have_pictures_too():
    for count in (1, 6):
        label = np.arange(count) % 2
        given = Predictions(np.arange(count), label, np.eye(2)[label] * 1.0005)
        figures = classification_figures(classification_result(given, ("a", "b")), label)
        assert len(figures) == 4


def test_of_many_classes_the_matrix_shows_those_confused_most(monkeypatch):
    """A thousand, of which 30 and 31, 500 and 7 are taken for each other."""
    confusion = np.diag(np.full(1000, 50))
    confusion[30, 31] = confusion[500, 7] = 9
    drawn = []
    monkeypatch.setattr(figures, "png", lambda each: drawn.append(each.axes[0]) or png(each))
    content = confusion_matrix(confusion, [f"class {index}" for index in range(1000)])
    with Image.open(BytesIO(content)) as image:
        assert np.asarray(image.convert("L"))[:, :2].min() > 200  # nothing is cut off
    names = [label.get_text() for label in drawn[0].get_yticklabels()]
    assert {"class 7", "class 30", "class 31", "class 500"} < set(names)
    assert len(names) == 25
    assert drawn[0].get_title() == "25 of 1000 classes, those confused most"
    shares = [text.get_text() for text in drawn[0].texts if text.get_visible()]
    assert sorted(shares) == ["0.15"] * 2 + ["0.85"] * 2 + ["1.00"] * 23


def test_of_many_classes_the_table_shows_the_hardest_and_folds_the_others(dataset):
    given = predictions(num_samples=90, num_classes=45)
    judgement = judge(given, dataset, sample_ids(dataset), EvaluateSpec())
    table = judgement.tables[0]
    scores = [float(row[4]) for row in table.rows]
    assert (len(scores), scores) == (45, sorted(scores))
    html = render(Report(title="", lead="", cards=(), figures={}, tables=(table,)))
    shown, folded = html.split("<summary>5 more</summary>")
    assert (shown.count("<tr>"), folded.count("<tr>")) == (1 + 40, 1 + 5)


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


def test_mistakes_are_the_most_confident_ones_and_pairs_the_most_confused(judgement):
    result = classification_result(predictions(), NAMES)
    wrong = result.predicted != predictions().label
    _, pairs, mistakes = judgement.tables
    weights = [float(row[4]) for row in mistakes.rows]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == pytest.approx(result.probabilities.max(1)[wrong].max(), abs=1e-4)
    assert len(weights) == min(20, wrong.sum())
    assert all(row[2] != row[3] for row in mistakes.rows)
    counts = [int(row[2]) for row in pairs.rows]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == wrong.sum()
    assert pairs.rows[0][3] == f"{counts[0] / 30:.1%}"


def test_mistakes_carry_source_and_picture(dataset, judgement):
    image, source, *_, sample_id = judgement.tables[-1].rows[0]
    assert source == f"folder/<{sample_id}>.png"
    with Image.open(BytesIO(image)) as picture:
        expected = dataset.gather("image", np.array([int(sample_id) - 10]))[0]
        np.testing.assert_array_equal(np.asarray(picture), expected)


@pytest.mark.parametrize("shape", [(8,), (8, 8, 2), (1, 8), (2, 8, 8, 3)])
def test_other_arrays_have_no_picture(shape):
    assert to_png(np.zeros(shape, np.uint8)) is None
    assert to_png(np.zeros((8, 8), np.float32)) is None


def test_sound_and_other_rows_of_numbers_have_a_waveform(tmp_path):
    """Silence, then a loud half: the picture is high where the sound is."""
    sound = np.zeros((3, 16_000), np.float32)
    sound[:, 8_000:] = np.sin(np.arange(8_000))
    fields = {"sound": sound, "label": np.arange(3)}
    write_dataset(tmp_path / "sounds", fields, splits={"test": 3}, classes=NAMES)
    content = picture(ShardedDataset(tmp_path / "sounds", "test"), np.array([1]))
    with Image.open(BytesIO(content)) as image:
        heights = (np.asarray(image.convert("L")) < 255).sum(0)
    assert heights.shape == (240,)
    assert set(heights[:119]) == {1}
    assert heights[122:].min() > 40
    assert content == to_waveform(sound[0])


@pytest.mark.parametrize(
    ("values", "is_drawn"),
    [
        (np.arange(40), True),
        (np.array([np.nan, np.inf] * 20), True),
        (np.arange(8.0), False),
        (np.zeros((40, 2)), False),
        (np.array(["a"] * 40), False),
    ],
)
def test_only_rows_of_numbers_have_a_waveform(values, is_drawn):
    assert (to_waveform(values) is not None) == is_drawn


def test_large_pictures_are_made_small():
    with Image.open(BytesIO(to_png(np.zeros((300, 600, 3), np.uint8)))) as image:
        assert image.size == (96, 48)


def test_undefined_metric_is_a_shortfall():
    spec = EvaluateSpec(min_metrics={"auroc": 0.9, "accuracy": 1.0})
    assert shortfalls({"accuracy": 1.0}, spec) == (
        "auroc is undefined on this split, the bound is at least 0.9",
    )


_HERE = os.getpid()


def _draw(step_folder: str, variant: int, checkpoint: str) -> dict[str, bytes]:
    if checkpoint == "kills" and os.getpid() != _HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return {f"{step_folder} {variant}": b"here" if os.getpid() == _HERE else b"beside"}


@pytest.mark.parametrize(("checkpoint", "where"), [("", b"beside"), ("kills", b"here")])
def test_figures_come_from_a_fork_or_are_drawn_here_when_it_was_killed(
    monkeypatch: pytest.MonkeyPatch, checkpoint: str, where: bytes
) -> None:
    monkeypatch.setattr(predict, "draw_training", _draw)
    figures = predict._drawn.__wrapped__("steps/000003", 1, checkpoint)
    assert figures() == {"steps/000003 1": where}


VALUES = {10: 0.5, 20: 0.9, 30: 0.7}
ROWS = tuple(
    HistoryRow(at=0, launch=1, epoch=step // 10 - 1, step=step, metrics={"val/acc": value})
    for step, value in VALUES.items()
)
STARTS = [
    HistoryRow(at=0, launch=launch, starts=True, epoch=0, step=step)
    for launch, step in ((1, 0), (2, 30))
]
HISTORY = History((STARTS[0], *ROWS, STARTS[1]))
MONITOR = ("trainer.monitor=val/acc", "trainer.monitor_mode=max")


def make_context(folder: Path, *overrides: str) -> Any:
    return SimpleNamespace(
        recipe=load_recipe("digits", overrides),
        site=SimpleNamespace(name="laptop"),
        spec=SimpleNamespace(run_id="digits-1"),
        run_folder=RunFolder(folder),
    )


def inputs(name: str, wanted: Any = "last") -> Inputs:
    return Inputs("dataset", Path("checkpoints") / name, EvaluateSpec(checkpoint=wanted))


@pytest.mark.parametrize(
    ("name", "wanted", "overrides", "told"),
    [
        (
            "best-000000020.ckpt",
            "best",
            MONITOR,
            "evaluate.checkpoint is best; step 20 in epoch 2; val/acc 0.9; "
            "best of 3 validations (max): 0.9 at step 20",
        ),
        (
            "final.ckpt",
            "last",
            MONITOR,
            "evaluate.checkpoint is last; step 30 in epoch 3; val/acc 0.7; "
            "best of 3 validations (max): 0.9 at step 20",
        ),
        ("step-000000025.ckpt", 25, (), "evaluate.checkpoint is 25; step 25 in epoch 2"),
        ("mine.ckpt", "last", (), "evaluate.checkpoint is last"),
    ],
)
def test_it_tells_which_checkpoint_and_why(
    tmp_path: Path, name: str, wanted: Any, overrides: tuple[str, ...], told: str
) -> None:
    assert chosen(make_context(tmp_path, *overrides), inputs(name, wanted), HISTORY) == told


def test_the_last_checkpoint_of_an_unknown_training_has_no_step() -> None:
    assert evaluated_step(Path("final.ckpt"), History(())) is None
    assert evaluated_step(Path("final.ckpt"), HISTORY) == 30


def test_it_tells_how_to_run_it_again_without_secrets(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    request = {
        "recipe": "my recipe.yaml",
        "site": "slurm-dev",
        "overrides": ["seed=1", "dataset.source=https://me:secret@127.0.0.1/a b"],
    }
    write_json(context.run_folder.request, request)
    rows = dict(provenance_table(context, inputs("final.ckpt"), "f00", 7, HISTORY).rows)
    assert rows["Run it again"] == (
        "headrace run 'my recipe.yaml' --site slurm-dev seed=1 "
        "'dataset.source=https://***@127.0.0.1/a b'"
    )
    assert rows["Training went on from steps"] == "30"
    nobody_asked = make_context(tmp_path / "other")
    table = provenance_table(nobody_asked, inputs("final.ckpt"), "f00", 7, History(()))
    assert {"Run it again", "Training went on from steps"}.isdisjoint(dict(table.rows))


def test_a_fine_tuned_model_is_compared_with_the_run_that_it_began_with(tmp_path: Path) -> None:
    before = RunFolder(tmp_path / "digits-0")
    write_record(before.recipe, load_recipe("digits"))
    start = f"train.init_from={before.checkpoints / 'final.ckpt'}"
    context = make_context(tmp_path / "digits-1", start, "seed=8")
    change = {"key": "seed", "before": "7", "after": "8"}
    write_json(context.run_folder.provenance, {"changes": [change]})
    file, parent = changes_tables(context)
    assert file.rows == [("seed", "7", "8")]
    assert "digits-0" in parent.title
    assert [row[0] for row in parent.rows] == ["seed", "train.init_from"]
    assert changes_tables(make_context(tmp_path / "digits-2")) == ()
