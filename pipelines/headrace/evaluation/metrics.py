"""Predictions of a whole split, and the metrics of the tasks that are built in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
_OF_CLASSES = {
    "precision": classification.multiclass_precision,
    "recall": classification.multiclass_recall,
    "f1": classification.multiclass_f1_score,
}
_OF_LABELS = {
    "accuracy": classification.multilabel_accuracy,
    "precision": classification.multilabel_precision,
    "recall": classification.multilabel_recall,
    "f1": classification.multilabel_f1_score,
    "auroc": classification.multilabel_auroc,
    "average_precision": classification.multilabel_average_precision,
}
_OF_SCORES = ("auroc", "average_precision")
"""Undefined for a label that no sample or every sample has."""


@dataclass(frozen=True)
class Predictions:
    """Labels and scores, row by row."""

    sample_id: npt.NDArray[np.int64]
    """`(num_samples,) int64`."""
    label: npt.NDArray[Any]
    """`(num_samples,)`, the class index or the value to predict; `(num_samples, num_labels)`, 0 or
    1, of a multilabel task."""
    scores: npt.NDArray[Any]
    """`(num_samples, num_classes) float` or `(num_samples,) float`."""


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """Metrics of a class or label."""

    name: str
    support: int
    """Samples of the class."""
    precision: float
    recall: float
    f1: float
    auroc: float | None
    """Area under the ROC curve, one against the rest; None when undefined."""


@dataclass(frozen=True, kw_only=True)
class MultilabelResult:
    """Content of the report of a multilabel classifier."""

    metrics: dict[str, float]
    """Means over labels by name; `exact_match` is the share of samples with all labels right."""
    classes: tuple[ClassMetrics, ...]
    probabilities: Floats
    """`(num_samples, num_classes) float64`."""


@dataclass(frozen=True, kw_only=True)
class ClassificationResult(MultilabelResult):
    """Content of the report of a classifier.

    Its `metrics` are accuracy; precision, recall, f1, auroc (macro); calibration_error.
    """

    confusion: npt.NDArray[np.int64]
    """`(num_classes, num_classes) int64`: row is the true class, column the predicted one."""
    predicted: npt.NDArray[np.int64]
    """`(num_samples,) int64`."""


def classification_result(
    predictions: Predictions, class_names: Sequence[str]
) -> ClassificationResult:
    """Return the metrics of a classifier with scores `(num_samples, num_classes)`.

    Scores are probabilities, or logits otherwise; `class_names` are in the order of the columns.

    Raises:
        EvaluationError: Scores are NaN or infinite, or labels do not fit them.
    """
    _check_finite(predictions)
    num_classes = predictions.scores.shape[1]
    _check_classes(predictions, num_classes)
    probabilities = to_probabilities(predictions.scores)
    scores = torch.from_numpy(probabilities)
    target = torch.from_numpy(np.asarray(predictions.label, np.int64))
    predicted = scores.argmax(1)
    aurocs = [_auroc(probabilities[:, each], target.numpy() == each) for each in range(num_classes)]
    micro = classification.multiclass_accuracy(predicted, target, num_classes, average="micro")
    found = {"accuracy": micro}
    for name, measure in _OF_CLASSES.items():
        found[name] = measure(predicted, target, num_classes, average="macro")
    if not np.isnan(aurocs).all():
        found["auroc"] = np.nanmean(aurocs)
    found["calibration_error"] = classification.multiclass_calibration_error(
        scores, target, num_classes, n_bins=CALIBRATION_BINS
    )
    by_class = {
        name: measure(predicted, target, num_classes, average="none").tolist()
        for name, measure in _OF_CLASSES.items()
    }
    names = [*class_names, *(str(index) for index in range(len(class_names), num_classes))]
    support = torch.bincount(target, minlength=num_classes)
    confusion = classification.multiclass_confusion_matrix(predicted, target, num_classes)
    return ClassificationResult(
        metrics={name: float(value) for name, value in found.items()},
        classes=_classes(names, support, {**by_class, "auroc": aurocs}),
        confusion=confusion.numpy(),
        probabilities=probabilities,
        predicted=predicted.numpy(),
    )


def of_two_classes(predictions: Predictions) -> Predictions:
    """Return scores `(num_samples,)` of the second class as `(num_samples, 2)` of both."""
    _check_finite(predictions)
    yes = _to_shares(predictions.scores)
    label = predictions.label
    if label.dtype == np.bool_:
        label = label.astype(np.int64)
    return replace(predictions, scores=np.stack([1 - yes, yes], 1), label=label)


def binary_metrics(result: ClassificationResult, label: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return the metrics of the second class of two, by name."""
    yes = result.classes[1]
    found = {
        "accuracy": result.metrics["accuracy"],
        "precision": yes.precision,
        "recall": yes.recall,
        "f1": yes.f1,
        "calibration_error": result.metrics["calibration_error"],
    }
    if yes.auroc is not None:
        scores, target = torch.from_numpy(result.probabilities[:, 1].copy()), torch.tensor(label)
        found["auroc"] = yes.auroc
        found["average_precision"] = float(classification.binary_average_precision(scores, target))
    return found


def multilabel_result(predictions: Predictions, names: Sequence[str]) -> MultilabelResult:
    """Return metrics of scores `(num_samples, num_labels)`, probabilities or logits.

    Raises:
        EvaluationError: Scores are NaN or infinite, or labels do not fit them.
    """
    _check_finite(predictions)
    num_labels = _num_labels(predictions)
    probabilities = _to_shares(predictions.scores)
    scores = torch.from_numpy(probabilities)
    target = torch.from_numpy(predictions.label.astype(np.int64))
    support = target.sum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torchmetrics|torch")
        found = {
            name: measure(scores, target, num_labels, average="none").double()
            for name, measure in _OF_LABELS.items()
        }
    defined = (support > 0) & (support < len(target))
    for name in _OF_SCORES:
        found[name] = torch.where(defined, found[name], torch.nan)
    means = {name: float(values.nanmean()) for name, values in found.items()}
    means["exact_match"] = float(classification.multilabel_exact_match(scores, target, num_labels))
    if len(names) != num_labels:
        names = [str(index) for index in range(num_labels)]
    return MultilabelResult(
        metrics={name: value for name, value in means.items() if not math.isnan(value)},
        classes=_classes(names, support, {name: each.tolist() for name, each in found.items()}),
        probabilities=probabilities,
    )


def regression_metrics(predictions: Predictions) -> dict[str, float]:
    """Return mae, rmse and r2 of a regressor with scores and labels `(num_samples,)`."""
    _check_finite(predictions)
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
    """Return scores as probabilities: unchanged if all rows add up to 1, else their softmax."""
    values = scores.astype(np.float64)
    if values.min() >= 0 and np.allclose(values.sum(1), 1, atol=1e-3):
        return values
    powers = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True), np.float64)


def _to_shares(scores: npt.NDArray[np.floating]) -> Floats:
    """Return scores from 0 to 1 unchanged, otherwise their sigmoid."""
    values = scores.astype(np.float64)
    if values.min() >= 0 and values.max() <= 1:
        return values
    return np.asarray(torch.sigmoid(torch.from_numpy(values)).numpy())


def _classes(
    names: Sequence[str], support: torch.Tensor, found: Mapping[str, Sequence[float]]
) -> tuple[ClassMetrics, ...]:
    """Return a record for each class, from the values of each metric by class."""
    return tuple(
        ClassMetrics(
            name=name,
            support=int(support[index]),
            precision=found["precision"][index],
            recall=found["recall"][index],
            f1=found["f1"][index],
            auroc=None if math.isnan(found["auroc"][index]) else found["auroc"][index],
        )
        for index, name in enumerate(names)
    )


def _auroc(scores: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """Return the share of pairs in which the positive sample has the higher score, ties by half.

    NaN for a class without samples, or with all of them. It equals the area under the ROC curve
    (Hanley and McNeil 1982). For 1000 classes torchmetrics, which draws the curves, takes forty
    times as long.
    """
    positive, negative = scores[is_positive], np.sort(scores[~is_positive])
    if not len(positive) or not len(negative):
        return math.nan
    lower = np.searchsorted(negative, positive, "left")
    not_higher = np.searchsorted(negative, positive, "right")
    return float((lower + not_higher).mean() / 2 / len(negative))


def _check_finite(predictions: Predictions) -> None:
    """Raise an `EvaluationError` for scores that are NaN or infinite."""
    rows = ~np.isfinite(predictions.scores).reshape(len(predictions.scores), -1).all(1)
    if rows.any():
        examples = ", ".join(str(number) for number in predictions.sample_id[rows][:_EXAMPLES])
        raise EvaluationError(
            f"The model gave NaN or infinite scores for {rows.sum()} of {len(rows)} samples "
            f"(sample ids {examples})",
            "Look at the loss of the training step, and at these samples.",
        )


def _check_classes(predictions: Predictions, num_classes: int) -> None:
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


def _num_labels(predictions: Predictions) -> int:
    """Return labels per sample; refuse values other than 0 or 1, or another number than scores."""
    label, shape = predictions.label, predictions.scores.shape
    if label.shape != shape or shape[1] < 2:
        raise EvaluationError(
            f"Labels are {label.shape}, scores {shape}: the task multilabel needs one of each for "
            "a sample and label, and two labels or more",
            "Set `evaluate.task: binary` for one label.",
        )
    if not np.isin(label, (0, 1)).all():
        raise EvaluationError(
            f"Labels reach from {label.min()} to {label.max()}, the task multilabel needs 0 and 1",
            "Correct the labels, or set `evaluate.task: custom`.",
        )
    return int(shape[1])
