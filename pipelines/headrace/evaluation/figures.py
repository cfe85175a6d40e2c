"""Pictures of how good a model is: confusion, curves, reliability, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics.functional.classification as classification
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headrace.evaluation.drawing import ACCENT, figure, png
from headrace.evaluation.metrics import CALIBRATION_BINS, ClassificationResult

_MAX_NAMED_CLASSES = 25
_MAX_CURVES = 10

_Classes = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Two tensors `(n,)` by the name of a class."""


def classification_figures(
    result: ClassificationResult, label: npt.NDArray[np.int64]
) -> dict[str, bytes]:
    """All pictures for a classifier as PNG bytes, by title."""
    names = [each.name for each in result.classes]
    shown = _hardest_classes(result)
    correct = result.predicted == label
    classes = {names[each]: _one_class(result.probabilities, label, each) for each in shown}
    return {
        "Confusion matrix": confusion_matrix(result.confusion, names),
        "ROC curves": _roc_curves(classes, len(names)),
        "Precision and recall": _precision_recall_curves(classes, len(names)),
        "Reliability": _reliability(result.probabilities.max(1), correct),
    }


def multilabel_figures(
    probabilities: npt.NDArray[Any], label: npt.NDArray[Any], names: Sequence[str]
) -> dict[str, bytes]:
    """Curves of the first ten labels that some samples have and some lack, as PNG, by title."""
    counts = label.sum(0)
    shown = np.flatnonzero((counts > 0) & (counts < len(label)))[:_MAX_CURVES]
    curves = {
        names[index]: (
            torch.from_numpy(probabilities[:, index].copy()),
            torch.from_numpy(label[:, index].astype(np.int64)),
        )
        for index in shown
    }
    return {
        "ROC curves": _roc_curves(curves, len(names)),
        "Precision and recall": _precision_recall_curves(curves, len(names)),
    }


def regression_figures(predicted: npt.NDArray[Any], label: npt.NDArray[Any]) -> dict[str, bytes]:
    """All pictures for a regressor as PNG bytes, by title."""
    return {
        "Predicted and true values": _predicted_and_true(predicted, label),
        "Residuals": _residuals(predicted, label),
    }


def _hardest_classes(result: ClassificationResult) -> list[int]:
    """Up to ten classes of the lowest AUROC, in the order of the classes."""
    scored = [
        (each.auroc, index) for index, each in enumerate(result.classes) if each.auroc is not None
    ]
    return sorted(index for _, index in sorted(scored)[:_MAX_CURVES])


def confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Rows are true classes, columns predicted ones; colour is the share of the true class.

    Of many classes those are shown that are confused most.
    """
    shown = _most_confused(confusion)
    side = max(4.5, 0.36 * len(shown) + 1.6)
    drawn, axes = figure(side, side * 0.92)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    image = axes.imshow(share[np.ix_(shown, shown)], cmap="Blues", vmin=0, vmax=1)
    drawn.colorbar(image, ax=axes, fraction=0.046, label="Share of the true class")
    axes.set(xlabel="Predicted", ylabel="True")
    if len(shown) < len(names):
        axes.set_title(f"{len(shown)} of {len(names)} classes, those confused most", fontsize=9)
    told = [names[each] for each in shown]
    axes.set_xticks(range(len(told)), told, rotation=90 if _are_long(told) else 0)
    axes.set_yticks(range(len(told)), told)
    for (row, column), count in np.ndenumerate(confusion[np.ix_(shown, shown)]):
        if count:
            dark = share[shown[row], shown[column]] > 0.5
            color = "white" if dark else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color, size=8)
    return png(drawn)


def _most_confused(confusion: npt.NDArray[np.int64]) -> list[int]:
    """Up to 25 classes in order: all, or those of the pairs with most mistakes."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    pairs = np.argsort(-wrong, axis=None, kind="stable")[: _MAX_NAMED_CLASSES**2]
    by_mistakes = np.stack(np.unravel_index(pairs, wrong.shape), 1).ravel().tolist()
    return sorted(list(dict.fromkeys([*by_mistakes, *range(len(wrong))]))[:_MAX_NAMED_CLASSES])


def _roc_curves(classes: _Classes, num_classes: int) -> bytes:
    """One curve a class, one against the rest."""
    curves = {name: classification.binary_roc(*each)[:2] for name, each in classes.items()}
    drawn, axes = _curves(curves, num_classes)
    axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=1)
    axes.set(xlabel="False positive rate", ylabel="True positive rate")
    return png(drawn)


def _precision_recall_curves(classes: _Classes, num_classes: int) -> bytes:
    found = {
        name: classification.binary_precision_recall_curve(*each) for name, each in classes.items()
    }
    curves = {name: (recall, precision) for name, (precision, recall, _) in found.items()}
    drawn, axes = _curves(curves, num_classes)
    axes.set(xlabel="Recall", ylabel="Precision", ylim=(0, 1.03))
    return png(drawn)


def _curves(curves: _Classes, num_classes: int) -> tuple[Figure, Axes]:
    """A curve `(x, y)` for each class that is shown."""
    drawn, axes = figure(5.2, 4.6)
    for name, (x, y) in curves.items():
        axes.plot(x, y, linewidth=1.4, label=name)
    _legend(axes, len(curves), num_classes)
    return drawn, axes


def _reliability(confidence: npt.NDArray[Any], correct: npt.NDArray[np.bool_]) -> bytes:
    """How often the model is right at each confidence, both `(num_samples,)`."""
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    places = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, CALIBRATION_BINS - 1)
    counts = np.bincount(places, minlength=CALIBRATION_BINS)
    hits = np.bincount(places, weights=correct, minlength=CALIBRATION_BINS)
    drawn, axes = figure(5.2, 4.6)
    used = counts > 0
    middle, width = (edges[:-1] + edges[1:])[used] / 2, 1 / CALIBRATION_BINS
    axes.bar(middle, (hits[used] / counts[used]), width, color=ACCENT, edgecolor="white")
    axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=1)
    axes.set(xlabel="Confidence", ylabel="Accuracy", xlim=(0, 1), ylim=(0, 1.03))
    return png(drawn)


def _predicted_and_true(predicted: npt.NDArray[Any], label: npt.NDArray[Any]) -> bytes:
    drawn, axes = figure(5.2, 4.6)
    axes.plot(label, predicted, ".", color=ACCENT, alpha=0.5, markersize=4)
    low = float(min(label.min(), predicted.min()))
    high = float(max(label.max(), predicted.max()))
    axes.plot([low, high], [low, high], "--", color="grey", linewidth=1)
    axes.set(xlabel="True", ylabel="Predicted")
    return png(drawn)


def _residuals(predicted: npt.NDArray[Any], label: npt.NDArray[Any]) -> bytes:
    drawn, axes = figure(5.2, 4.6)
    axes.hist(predicted - label, bins=40, color=ACCENT, edgecolor="white")
    axes.axvline(0, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="Predicted - true", ylabel="Samples")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return png(drawn)


def _one_class(
    probabilities: npt.NDArray[Any], label: npt.NDArray[np.int64], index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.from_numpy(np.ascontiguousarray(probabilities[:, index]))
    return scores, torch.from_numpy((label == index).astype(np.int64))


def _legend(axes: Axes, num_shown: int, num_classes: int) -> None:
    title = f"{num_shown} hardest of {num_classes}" if num_shown < num_classes else None
    if num_shown:
        axes.legend(fontsize=8, title=title, title_fontsize=8, frameon=False)


def _are_long(names: Sequence[str]) -> bool:
    return max(len(name) for name in names) > 3
