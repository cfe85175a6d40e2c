"""What the report shows of merged predictions: metrics, figures, the worst mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.data.dataset import SampleReader
from headrace.evaluation.figures import (
    classification_figures,
    multilabel_figures,
    regression_figures,
)
from headrace.evaluation.metrics import (
    ClassificationResult,
    ClassMetrics,
    MultilabelResult,
    Predictions,
    binary_metrics,
    classification_result,
    multilabel_result,
    of_two_classes,
    regression_metrics,
)
from headrace.fields import audio
from headrace.fields.kinds import TEXTS
from headrace.recipe.evaluate import EvaluateSpec
from headrace.report.html import ACCENT, Table, columns
from headrace.shards.dataset import ShardedDataset

_MAX_PAIRS = 10
_MAX_CLASSES = 40
_MAX_MISTAKES = 20
_SIDE_PIXELS = 96
_CHANNELS = (1, 3, 4)
_WAVE_PIXELS = (240, 48)
_FEWEST_NUMBERS = 32


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What was found out about a model."""

    metrics: dict[str, float]
    figures: dict[str, bytes]
    """PNG bytes by title."""
    tables: tuple[Table, ...]
    pages: dict[str, str] = field(default_factory=dict)
    """HTML by title."""


def judge(
    predictions: Predictions, dataset: ShardedDataset, ids: NDArray[np.int64], spec: EvaluateSpec
) -> Judgement:
    """Judge the predictions of a whole split, sorted by sample id, by the task of the recipe.

    Args:
        predictions: Of all samples.
        dataset: The split, for class names, source paths and pictures.
        ids: Ids of its samples in its order, `(num_samples,) int64`.
        spec: The recipe's `evaluate`.

    Raises:
        EvaluationError: The predictions cannot be judged.
    """
    if spec.task == "regression":
        worst = _mistakes_table(
            regression_mistakes(predictions), dataset, ids, "Largest errors", "Absolute error"
        )
        return Judgement(
            metrics=regression_metrics(predictions),
            figures=regression_figures(predictions.scores, predictions.label),
            tables=(worst,),
        )
    if spec.task == "multilabel":
        return _multilabel(predictions, dataset, ids)
    classes = dataset.manifest.classes
    if spec.task == "binary":
        predictions = of_two_classes(predictions)
    result = classification_result(predictions, classes)
    mistakes = classification_mistakes(predictions, result)
    return Judgement(
        metrics=binary_metrics(result, predictions.label)
        if spec.task == "binary"
        else result.metrics,
        figures=classification_figures(result, predictions.label),
        tables=(
            _classes_table("Classes", result.classes),
            _pairs_table(result),
            _mistakes_table(mistakes, dataset, ids, "Mistaken with most confidence", "Confidence"),
        ),
    )


def _multilabel(
    predictions: Predictions, dataset: ShardedDataset, ids: NDArray[np.int64]
) -> Judgement:
    result = multilabel_result(predictions, dataset.manifest.classes)
    names = [each.name for each in result.classes]
    mistakes = multilabel_mistakes(predictions, result)
    return Judgement(
        metrics=result.metrics,
        figures=multilabel_figures(result.probabilities, predictions.label, names),
        tables=(
            _classes_table("Labels", result.classes),
            _mistakes_table(mistakes, dataset, ids, "Farthest from the truth", "Largest error"),
        ),
    )


def _classes_table(title: str, classes: Sequence[ClassMetrics]) -> Table:
    numbers = ("Samples", "Precision", "Recall", "F1", "AUROC")
    many = len(classes) > _MAX_CLASSES
    hardest = sorted(classes, key=lambda each: each.f1) if many else classes
    return Table(
        title=f"{title}, the hardest first" if many else title,
        columns=(*columns("Class"), *columns(*numbers, kind="number")),
        shown=_MAX_CLASSES,
        rows=[
            (
                each.name,
                str(each.support),
                f"{each.precision:.4f}",
                f"{each.recall:.4f}",
                f"{each.f1:.4f}",
                "undefined" if each.auroc is None else f"{each.auroc:.4f}",
            )
            for each in hardest
        ],
    )


def _pairs_table(result: ClassificationResult) -> Table:
    return Table(
        title="Classes confused most",
        columns=(
            *columns("True", "Taken for"),
            *columns("Samples", "Share of the class", kind="number"),
        ),
        rows=[
            (pair.true, pair.predicted, str(pair.num_samples), f"{pair.share:.1%}")
            for pair in confused_pairs(result)
        ],
        empty="No sample was taken for another class.",
    )


def _mistakes_table(
    mistakes: tuple[Mistake, ...],
    dataset: ShardedDataset,
    ids: NDArray[np.int64],
    title: str,
    weight: str,
) -> Table:
    # one by one: not many shards are held at once of those that lie elsewhere
    places = [np.flatnonzero(ids == mistake.sample_id) for mistake in mistakes]
    rows = [
        (
            picture(dataset, place),
            dataset.sources(place)[0],
            mistake.true,
            mistake.predicted,
            f"{mistake.weight:.4f}",
            str(mistake.sample_id),
        )
        for mistake, place in zip(mistakes, places, strict=True)
    ]
    heads = (
        *columns("", kind="image"),
        *columns("Source", kind="path"),
        *columns("True", "Predicted"),
        *columns(weight, "Sample id", kind="number"),
    )
    return Table(title=title, columns=heads, rows=rows, empty="The model made no mistake.")


class ConfusedPair(NamedTuple):
    """Two classes of which one is taken for the other; `share` is that of the true class."""

    true: str
    predicted: str
    num_samples: int
    share: float


class Mistake(NamedTuple):
    """A sample that the model got wrong; `weight` is its confidence, or the absolute error."""

    sample_id: int
    true: str
    predicted: str
    weight: float


def confused_pairs(result: ClassificationResult) -> tuple[ConfusedPair, ...]:
    """The ten pairs with most mistakes, the worst first."""
    wrong = result.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [np.unravel_index(place, wrong.shape) for place in order]
    return tuple(
        ConfusedPair(
            true=result.classes[row].name,
            predicted=result.classes[column].name,
            num_samples=int(wrong[row, column]),
            share=float(wrong[row, column] / result.classes[row].support),
        )
        for row, column in pairs
        if wrong[row, column]
    )


def classification_mistakes(
    predictions: Predictions, result: ClassificationResult
) -> tuple[Mistake, ...]:
    """The twenty wrong samples of which the model was most sure."""
    names = [each.name for each in result.classes]
    label, found = predictions.label, result.predicted
    return _mistakes(
        predictions,
        wrong=found != label,
        weight=result.probabilities.max(1),
        told=lambda row: (names[int(label[row])], names[int(found[row])]),
    )


def regression_mistakes(predictions: Predictions) -> tuple[Mistake, ...]:
    """The twenty samples with the largest errors."""
    label, found = predictions.label, predictions.scores
    errors = np.abs(found - label)
    return _mistakes(
        predictions,
        wrong=errors > 0,
        weight=errors,
        told=lambda row: (f"{float(label[row]):.6g}", f"{float(found[row]):.6g}"),
    )


def multilabel_mistakes(predictions: Predictions, result: MultilabelResult) -> tuple[Mistake, ...]:
    """The twenty samples with a wrong label whose probability is farthest from the truth."""
    names = np.array([each.name for each in result.classes], object)
    truth, found = predictions.label.astype(bool), result.probabilities > 0.5
    return _mistakes(
        predictions,
        wrong=(truth != found).any(1),
        weight=np.abs(result.probabilities - truth).max(1),
        told=lambda row: (", ".join(names[truth[row]]), ", ".join(names[found[row]])),
    )


def _mistakes(
    predictions: Predictions,
    wrong: NDArray[np.bool_],
    weight: NDArray[Any],
    told: Callable[[int], tuple[str, str]],
) -> tuple[Mistake, ...]:
    """Those of most weight; `told` gives the truth of a row, and what the model said."""
    rows = np.flatnonzero(wrong)
    worst = rows[np.argsort(-weight[rows], kind="stable")][:_MAX_MISTAKES].tolist()
    return tuple(
        Mistake(int(predictions.sample_id[row]), *told(row), float(weight[row])) for row in worst
    )


def picture(dataset: ShardedDataset, place: NDArray[np.int64]) -> bytes | None:
    """The sample at a place of the split, `(1,) int64`, as a PNG: its first field that has one."""
    for info in dataset.manifest.fields:
        if info.name == "label" or info.encoding in TEXTS:
            continue
        values = SampleReader(dataset, fields=[info.name]).read(place)[info.name][0].numpy()
        if info.encoding in audio.ENCODINGS and values.ndim == 2:
            values = values.mean(1)
        drawn = to_png(values) or to_waveform(values)
        if drawn is not None:
            return drawn
    return None


def to_png(values: NDArray[Any]) -> bytes | None:
    """Pixels `(height, width[, channels]) uint8` as a small PNG; None when they are none."""
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or min(values.shape[:2]) < 2:
        return None
    if values.ndim == 3 and values.shape[2] not in _CHANNELS:
        return None
    pixels = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
    return _png(image)


def to_waveform(values: NDArray[Any]) -> bytes | None:
    """Numbers `(frames,)` as a small PNG of their lowest and highest in each stretch.

    None when they are no row of at least 32 real numbers. Those that are not finite count as 0.
    """
    if values.ndim != 1 or values.dtype.kind not in "iuf" or len(values) < _FEWEST_NUMBERS:
        return None
    width, height = _WAVE_PIXELS
    parts = np.array_split(np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0), width)
    parts = [part for part in parts if len(part)]
    low, high = (np.array([find(part) for part in parts]) for find in (np.min, np.max))
    span = max(high.max() - low.min(), 1e-12)
    tops, bottoms = ((high.max() - each) / span * (height - 1) for each in (high, low))
    image = Image.new("RGB", (len(parts), height), "white")
    draw = ImageDraw.Draw(image)
    for x, (top, bottom) in enumerate(zip(tops, bottoms, strict=True)):
        draw.line([(x, round(top)), (x, round(bottom))], fill=ACCENT)
    return _png(image)


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
