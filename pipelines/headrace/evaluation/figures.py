"""Pictures of how good a model is: confusion, curves, reliability, residuals.

Drawn by scikit-learn, the curves by torchmetrics. Ranks are forked from a process that has imported
this module, so that scikit-learn is imported where something is drawn.
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
    from sklearn.metrics import PredictionErrorDisplay

    display = PredictionErrorDisplay(y_true=label, y_pred=predicted)
    pictures = {}
    for title, kind in (
        ("Predicted and true values", "actual_vs_predicted"),
        ("Residuals", "residual_vs_predicted"),
    ):
        drawn, axes = figure(5.2, 4.6)
        display.plot(axes, kind=kind, scatter_kwargs={"alpha": 0.5, "s": 12})
        pictures[title] = png(drawn)
    return pictures


def confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Rows are true classes, columns predicted ones; shares of the true class.

    Of many classes those are shown that are confused most.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    shown = _most_confused(confusion)
    side = max(4.5, 0.36 * len(shown) + 1.6)
    drawn, axes = figure(side, side * 0.92)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    cells = ConfusionMatrixDisplay(
        share[np.ix_(shown, shown)], display_labels=[names[each] for each in shown]
    ).plot(
        ax=axes,
        cmap="Blues",
        values_format=".2f",
        xticks_rotation="vertical",
        text_kw={"size": 8},
    )
    for text in cells.text_.flat:
        text.set_visible(text.get_text() != "0.00")
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
    scores: npt.NDArray[Any],
    label: npt.NDArray[Any],
    names: Sequence[str],
    shown: Iterable[int],
) -> dict[str, bytes]:
    """Curves of some classes, one against the rest, as PNG bytes by title.

    Args:
        scores: `(num_samples, num_classes) float64`.
        label: Whether a sample is of a class, of the same shape.
        names: Of all classes.
        shown: Places of those that are drawn.
    """
    told = [names[index] for index in shown]
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
        plot_curve((x, y), ax=axes, label_names=axis_names, labels=told)
        axes.set(ylim=(0, 1.03))
        if len(told) < len(names) and told:
            axes.legend(title=f"{len(told)} hardest of {len(names)}")
        pictures[title] = png(drawn)
    return pictures


def _reliability(confidence: npt.NDArray[Any], correct: npt.NDArray[np.bool_]) -> bytes:
    """How often the model is right at each confidence, both `(num_samples,)`."""
    from sklearn.calibration import CalibrationDisplay

    drawn, axes = figure(5.2, 4.6)
    confidence = np.clip(confidence, 0, 1)  # probabilities of the user's add up to 1 about
    CalibrationDisplay.from_predictions(
        correct, confidence, n_bins=CALIBRATION_BINS, pos_label=True, ax=axes, name="the model"
    )
    axes.set(xlabel="Confidence", ylabel="Accuracy", xlim=(0, 1), ylim=(0, 1.03))
    return png(drawn)
