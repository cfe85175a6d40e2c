"""Pictures of how good a model is: confusion, curves, reliability, residuals.

Drawn by matplotlib, the curves by torchmetrics: scikit-learn, which draws the same, would be
imported for these alone, for two seconds of every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics.functional.classification as classification
from torchmetrics.utilities.plot import plot_curve

from headrace.evaluation.metrics import CALIBRATION_BINS, ClassificationResult
from headrace.report.html import figure, png

_MAX_NAMED_CLASSES = 25
_MAX_CURVES = 10
_LEAST_SHOWN = 0.005  # of a share: less is 0.00


def classification_figures(
    result: ClassificationResult, label: npt.NDArray[np.int64]
) -> dict[str, bytes]:
    """All pictures for a classifier as PNG bytes, by title."""
    names = [each.name for each in result.classes]
    of_each = label[:, None] == np.arange(len(names))
    scored = [
        (each.auroc, index) for index, each in enumerate(result.classes) if each.auroc is not None
    ]
    hardest = sorted(index for _, index in sorted(scored)[:_MAX_CURVES])
    return {
        "Confusion matrix": confusion_matrix(result.confusion, names),
        **_curves(result.probabilities, of_each, names, hardest),
        "Reliability": _reliability(result.probabilities.max(1), result.predicted == label),
    }


def multilabel_figures(
    probabilities: npt.NDArray[Any], label: npt.NDArray[Any], names: Sequence[str]
) -> dict[str, bytes]:
    """Curves of the first ten labels that some samples have and some lack, as PNG, by title."""
    counts = label.sum(0)
    shown = np.flatnonzero((counts > 0) & (counts < len(label)))[:_MAX_CURVES]
    return _curves(probabilities, label, names, shown)


def regression_figures(predicted: npt.NDArray[Any], label: npt.NDArray[Any]) -> dict[str, bytes]:
    """All pictures for a regressor as PNG bytes, by title."""
    low, high = min(label.min(), predicted.min()), max(label.max(), predicted.max())
    pictures = {}
    for title, y, axis_name, ideal in (
        ("Predicted and true values", label, "True values", (low, high)),
        ("Residuals", label - predicted, "Residuals (true - predicted)", (0, 0)),
    ):
        drawn, axes = figure(5.2, 4.6)
        axes.plot((low, high), ideal, "k--", alpha=0.7)
        axes.scatter(predicted, y, alpha=0.5, s=12)
        axes.set(xlabel="Predicted values", ylabel=axis_name)
        pictures[title] = png(drawn)
    return pictures


def confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Rows are true classes, columns predicted ones; shares of the true class.

    Of many classes those are shown that are confused most.
    """
    shown = _most_confused(confusion)
    side = max(4.5, 0.36 * len(shown) + 1.6)
    drawn, axes = figure(side, side * 0.92)
    share = (confusion / np.maximum(confusion.sum(1, keepdims=True), 1))[np.ix_(shown, shown)]
    cells = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    drawn.colorbar(cells, ax=axes)
    for (row, column), value in np.ndenumerate(share):
        if value >= _LEAST_SHOWN:
            color = "white" if value > 0.5 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", size=8, color=color)
    places, labels = range(len(shown)), [names[each] for each in shown]
    axes.set_xticks(places, labels, rotation="vertical")
    axes.set_yticks(places, labels)
    axes.set(xlabel="Predicted class", ylabel="True class")
    if len(shown) < len(names):
        axes.set_title(f"{len(shown)} of {len(names)} classes, those confused most", fontsize=9)
    return png(drawn)


def _most_confused(confusion: npt.NDArray[np.int64]) -> list[int]:
    """Up to 25 classes in order: all, or those of the pairs with most mistakes."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    pairs = np.argsort(-wrong, axis=None, kind="stable")[: _MAX_NAMED_CLASSES**2]
    by_mistakes = np.stack(np.unravel_index(pairs, wrong.shape), 1).ravel().tolist()
    return sorted(list(dict.fromkeys([*by_mistakes, *range(len(wrong))]))[:_MAX_NAMED_CLASSES])


def _curves(
    scores: npt.NDArray[Any], label: npt.NDArray[Any], names: Sequence[str], shown: Iterable[int]
) -> dict[str, bytes]:
    """Curves of the classes `shown`, one against the rest, as PNG bytes by title.

    `scores` are `(num_samples, num_classes) float64`; `label`, alike: whether of that class.
    """
    labels = [names[index] for index in shown]
    given = [
        (torch.from_numpy(scores[:, index].copy()), torch.from_numpy(label[:, index].astype(int)))
        for index in shown
    ]
    rates = [classification.binary_roc(*each)[:2] for each in given]
    found = [classification.binary_precision_recall_curve(*each)[1::-1] for each in given]
    pictures = {}
    for title, curves, axis_names in (
        ("ROC curves", rates, ("False positive rate", "True positive rate")),
        ("Precision and recall", found, ("Recall", "Precision")),
    ):
        drawn, axes = figure(5.2, 4.6)
        x, y = [curve[0] for curve in curves], [curve[1] for curve in curves]
        plot_curve((x, y), ax=axes, label_names=axis_names, labels=labels)
        axes.set(ylim=(0, 1.03))
        if len(labels) < len(names) and labels:
            axes.legend(title=f"{len(labels)} hardest of {len(names)}")
        pictures[title] = png(drawn)
    return pictures


def _reliability(confidence: npt.NDArray[Any], correct: npt.NDArray[np.bool_]) -> bytes:
    """How often the model is right at each confidence, both `(num_samples,)`."""
    drawn, axes = figure(5.2, 4.6)
    confidence = np.clip(confidence, 0, 1)  # probabilities of the user's add up to 1 about
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    counts = np.bincount(bins, minlength=CALIBRATION_BINS)
    met = counts > 0
    means = [
        np.bincount(bins, each, CALIBRATION_BINS)[met] / counts[met]
        for each in (confidence, correct)
    ]
    axes.plot((0, 1), (0, 1), "k:", label="calibrated perfectly")
    axes.plot(*means, "s-", label="the model")
    axes.legend(loc="lower right")
    axes.set(xlabel="Confidence", ylabel="Accuracy", xlim=(0, 1), ylim=(0, 1.03))
    return png(drawn)
