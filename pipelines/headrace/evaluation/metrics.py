"""Predictions of a whole split, and the metrics of the tasks that are built in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics.functional as measures
import torchmetrics.functional.classification as classification

from headrace.errors import EvaluationError

CALIBRATION_BINS = 15
"""Bins of confidence for the calibration error and the reliability diagram."""

Floats = npt.NDArray[np.float64]
_EXAMPLES = 5
_MEASURES = {
    "precision": classification.multiclass_precision,
    "recall": classification.multiclass_recall,
    "f1": classification.multiclass_f1_score,
}


@dataclass(frozen=True)
class Predictions:
    """Labels and scores, row by row."""

    sample_id: npt.NDArray[np.int64]
    """`(num_samples,) int64`."""
    label: npt.NDArray[Any]
    """`(num_samples,)`, the class index or the value to predict."""
    scores: npt.NDArray[Any]
    """`(num_samples, num_classes) float` or `(num_samples,) float`."""


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """How well one class is found."""

    name: str
    support: int
    """Samples of the class."""
    precision: float
    recall: float
    f1: float
    auroc: float | None
    """Area under the ROC curve, one against the rest; None when undefined."""


@dataclass(frozen=True, kw_only=True)
class ClassificationResult:
    """Everything that the report of a classifier tells."""

    metrics: dict[str, float]
    """By name: accuracy; precision, recall, f1, auroc (macro); calibration_error."""
    classes: tuple[ClassMetrics, ...]
    confusion: npt.NDArray[np.int64]
    """`(num_classes, num_classes) int64`: row is the true class, column the predicted one."""
    probabilities: Floats
    """`(num_samples, num_classes) float64`."""
    predicted: npt.NDArray[np.int64]
    """`(num_samples,) int64`."""


def classification_result(
    predictions: Predictions, class_names: Sequence[str]
) -> ClassificationResult:
    """Judge a classifier.

    Args:
        predictions: Scores `(num_samples, num_classes)`: probabilities, or logits otherwise.
        class_names: Names in the order of the columns.

    Raises:
        EvaluationError: Scores are NaN or infinite, or labels do not fit them.
    """
    check_finite(predictions)
    num_classes = predictions.scores.shape[1]
    _check_labels(predictions, num_classes)
    probabilities = to_probabilities(predictions.scores)
    scores = torch.from_numpy(probabilities)
    target = torch.from_numpy(np.asarray(predictions.label, np.int64))
    predicted = scores.argmax(1)
    aurocs = _aurocs(scores, target, num_classes)
    names = [*class_names, *(str(index) for index in range(len(class_names), num_classes))]
    return ClassificationResult(
        metrics=_summary(predicted, scores, target, aurocs),
        classes=_by_class(predicted, target, aurocs, names),
        confusion=classification.multiclass_confusion_matrix(
            predicted, target, num_classes
        ).numpy(),
        probabilities=probabilities,
        predicted=predicted.numpy(),
    )


def regression_metrics(predictions: Predictions) -> dict[str, float]:
    """Judge a regressor, of scores and labels `(num_samples,)`: mae, rmse, r2."""
    check_finite(predictions)
    if len(predictions.label) < 2:
        raise EvaluationError(
            "Regression needs at least two samples, the split has one", "Make the split larger."
        )
    found = torch.from_numpy(predictions.scores.astype(np.float64))
    target = torch.from_numpy(np.asarray(predictions.label, np.float64))
    return {
        "mae": float(measures.mean_absolute_error(found, target)),
        "rmse": float(measures.mean_squared_error(found, target, squared=False)),
        "r2": float(measures.r2_score(found, target)),
    }


def to_probabilities(scores: npt.NDArray[Any]) -> Floats:
    """Scores as probabilities: rows that all add up to 1 are taken as they are, else softmax."""
    values = scores.astype(np.float64)
    if values.min() >= 0 and np.allclose(values.sum(1), 1, atol=1e-3):
        return values
    powers = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True), np.float64)


def _summary(
    predicted: torch.Tensor, scores: torch.Tensor, target: torch.Tensor, aurocs: Floats
) -> dict[str, float]:
    num_classes = scores.shape[1]
    accuracy = classification.multiclass_accuracy(predicted, target, num_classes, average="micro")
    metrics = {"accuracy": accuracy}
    for name, measure in _MEASURES.items():
        metrics[name] = measure(predicted, target, num_classes, average="macro")
    if not np.isnan(aurocs).all():
        metrics["auroc"] = np.nanmean(aurocs)
    metrics["calibration_error"] = classification.multiclass_calibration_error(
        scores, target, num_classes, n_bins=CALIBRATION_BINS
    )
    return {name: float(value) for name, value in metrics.items()}


def _by_class(
    predicted: torch.Tensor, target: torch.Tensor, aurocs: Floats, names: Sequence[str]
) -> tuple[ClassMetrics, ...]:
    found = {
        name: measure(predicted, target, len(names), average="none").tolist()
        for name, measure in _MEASURES.items()
    }
    support = torch.bincount(target, minlength=len(names))
    return tuple(
        ClassMetrics(
            name=name,
            support=int(support[index]),
            auroc=None if np.isnan(aurocs[index]) else float(aurocs[index]),
            **{measure: values[index] for measure, values in found.items()},
        )
        for index, name in enumerate(names)
    )


def _aurocs(scores: torch.Tensor, target: torch.Tensor, num_classes: int) -> Floats:
    """One against the rest; NaN for classes without samples, or with all of them."""
    values, label = scores.numpy(), target.numpy()
    return np.array([_auroc(values[:, each], label == each) for each in range(num_classes)])


def _auroc(scores: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """Share of pairs in which the positive sample has the higher score, ties by half.

    That is the area under the curve (Hanley and McNeil 1982), without drawing it: of 1000 classes
    torchmetrics draws so many curves, which takes forty times as long.
    """
    positive, negative = scores[is_positive], np.sort(scores[~is_positive])
    if not len(positive) or not len(negative):
        return math.nan
    lower = np.searchsorted(negative, positive, "left")
    not_higher = np.searchsorted(negative, positive, "right")
    return float((lower + not_higher).mean() / 2 / len(negative))


def check_finite(predictions: Predictions) -> None:
    """Refuse scores that are NaN or infinite: an `EvaluationError`."""
    rows = ~np.isfinite(predictions.scores).reshape(len(predictions.scores), -1).all(1)
    if rows.any():
        examples = ", ".join(str(number) for number in predictions.sample_id[rows][:_EXAMPLES])
        raise EvaluationError(
            f"The model gave NaN or infinite scores for {rows.sum()} of {len(rows)} samples "
            f"(sample ids {examples})",
            "Look at the loss of the training step, and at these samples.",
        )


def _check_labels(predictions: Predictions, num_classes: int) -> None:
    label = predictions.label
    if not np.issubdtype(label.dtype, np.integer):
        raise EvaluationError(
            f"Labels are of type {label.dtype}, but the task needs class indices",
            "Set `evaluate.task: regression`.",
        )
    if label.min() < 0 or label.max() >= num_classes:
        raise EvaluationError(
            f"Labels reach from {label.min()} to {label.max()}, "
            f"but the model scores {num_classes} classes",
            "Give the model as many outputs as the dataset has classes.",
        )
