"""Content of the report from merged predictions: metrics, figures, the worst mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

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
    Predictions,
    binary_metrics,
    classification_result,
    multilabel_result,
    of_two_classes,
    regression_metrics,
)
from headrace.fields.field_kind import kind_of_encoding
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
    """Results of an evaluated model."""

    metrics: dict[str, float] = field(default_factory=dict)
    figures: dict[str, bytes] = field(default_factory=dict)
    """PNG bytes by title."""
    tables: tuple[Table, ...] = ()
    pages: dict[str, str] = field(default_factory=dict)
    """HTML by title."""


def judge(
    predictions: Predictions, dataset: ShardedDataset, ids: NDArray[np.int64], spec: EvaluateSpec
) -> Judgement:
    """Return results of the predictions of a whole split, sorted by sample id.

    `ids (num_samples,) int64` are those of the split's samples in its order.

    Raises:
        EvaluationError: The predictions cannot be judged.
    """
    worst = partial(_worst, dataset, ids)
    if spec.task == "regression":
        return _regression(predictions, worst)
    if spec.task == "multilabel":
        return _multilabel(predictions, dataset.manifest.classes, worst)
    if spec.task == "binary":
        predictions = of_two_classes(predictions)
    result = classification_result(predictions, dataset.manifest.classes)
    label, found = predictions.label, result.predicted
    is_binary = spec.task == "binary"
    names = [each.name for each in result.classes]
    return Judgement(
        metrics=binary_metrics(result, label) if is_binary else result.metrics,
        figures=classification_figures(result, label),
        tables=(
            _classes_table("Classes", result.classes),
            _pairs_table(result),
            worst(
                ("Mistaken with most confidence", "Confidence"),
                wrong=found != label,
                weight=result.probabilities.max(1),
                words_of=lambda row: (names[int(label[row])], names[int(found[row])]),
            ),
        ),
    )


def _regression(predictions: Predictions, worst: Callable[..., Table]) -> Judgement:
    label, found = predictions.label, predictions.scores
    errors = np.abs(found - label)
    table = worst(
        ("Largest errors", "Absolute error"),
        wrong=errors > 0,
        weight=errors,
        words_of=lambda row: (f"{float(label[row]):.6g}", f"{float(found[row]):.6g}"),
    )
    metrics = regression_metrics(predictions)
    return Judgement(metrics=metrics, figures=regression_figures(found, label), tables=(table,))


def _multilabel(
    predictions: Predictions, classes: Sequence[str], worst: Callable[..., Table]
) -> Judgement:
    result = multilabel_result(predictions, classes)
    names = [each.name for each in result.classes]
    words = np.array(names, object)
    truth, found = predictions.label.astype(bool), result.probabilities > 0.5
    table = worst(
        ("Farthest from the truth", "Largest error"),
        wrong=(truth != found).any(1),
        weight=np.abs(result.probabilities - truth).max(1),
        words_of=lambda row: (", ".join(words[truth[row]]), ", ".join(words[found[row]])),
    )
    return Judgement(
        metrics=result.metrics,
        figures=multilabel_figures(result.probabilities, predictions.label, names),
        tables=(_classes_table("Labels", result.classes), table),
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
    """Return the ten pairs of classes with most mistakes, the worst first."""
    wrong = result.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [np.unravel_index(place, wrong.shape) for place in order]
    return Table(
        title="Classes confused most",
        columns=(
            *columns("True", "Taken for"),
            *columns("Samples", "Share of the class", kind="number"),
        ),
        rows=[
            (
                result.classes[true].name,
                result.classes[predicted].name,
                str(wrong[true, predicted]),
                f"{wrong[true, predicted] / result.classes[true].support:.1%}",
            )
            for true, predicted in pairs
            if wrong[true, predicted]
        ],
        empty="No sample was taken for another class.",
    )


def _worst(
    dataset: ShardedDataset,
    ids: NDArray[np.int64],
    titles: tuple[str, str],
    *,
    wrong: NDArray[np.bool_],
    weight: NDArray[Any],
    words_of: Callable[[int], tuple[str, str]],
) -> Table:
    """Return the twenty rows `wrong` of most `weight`, with their pictures.

    `titles` are those of the table and of the weights; `words_of` a row returns its truth and its
    prediction; `ids` are those of the split's samples in its order.
    """
    rows = np.flatnonzero(wrong)
    worst = rows[np.argsort(-weight[rows], kind="stable")][:_MAX_MISTAKES].tolist()
    # one by one: only few remote shards are held at once
    order = np.argsort(ids, kind="stable")
    places = [order[row : row + 1] for row in worst]
    cells = [
        (
            picture(dataset, place),
            dataset.sources(place)[0],
            *words_of(row),
            f"{weight[row]:.4f}",
            str(ids[place[0]]),
        )
        for row, place in zip(worst, places, strict=True)
    ]
    title, heading = titles
    heads = (
        *columns("", kind="image"),
        *columns("Source", kind="path"),
        *columns("True", "Predicted"),
        *columns(heading, "Sample id", kind="number"),
    )
    return Table(title=title, columns=heads, rows=cells, empty="The model made no mistake.")


def picture(dataset: ShardedDataset, place: NDArray[np.int64]) -> bytes | None:
    """Return a sample of the split as a PNG: its first field that can be drawn."""
    for info in dataset.manifest.fields:
        kind = kind_of_encoding(info.encoding)
        if info.name == "label" or kind.is_text:
            continue
        values = SampleReader(dataset, fields=[info.name]).read(place)[info.name][0].numpy()
        values = kind.to_picture(values)
        if kind.is_wave and values.ndim == 2:
            values = values.mean(1)
        drawn = to_png(values) or to_waveform(values)
        if drawn is not None:
            return drawn
    return None


def to_png(values: NDArray[Any]) -> bytes | None:
    """Return pixels `(height, width[, channels]) uint8` as a small PNG; None for other arrays."""
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or min(values.shape[:2]) < 2:
        return None
    if values.ndim == 3 and values.shape[2] not in _CHANNELS:
        return None
    pixels = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
    return _png(image)


def to_waveform(values: NDArray[Any]) -> bytes | None:
    """Return numbers `(frames,)` as a small PNG of the lowest and highest in each stretch.

    None for other arrays than a row of at least 32 real numbers. Infinite values count as 0.
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
