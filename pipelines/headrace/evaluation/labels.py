"""Metrics of models that say yes or no: once a sample (binary), or once a label (multilabel)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics.functional.classification as classification

from headrace.errors import EvaluationError
from headrace.evaluation.metrics import (
    ClassificationResult,
    ClassMetrics,
    Floats,
    Predictions,
    check_finite,
)

_MEASURES = {
    "accuracy": classification.multilabel_accuracy,
    "precision": classification.multilabel_precision,
    "recall": classification.multilabel_recall,
    "f1": classification.multilabel_f1_score,
}
_OF_SCORES = {
    "auroc": classification.multilabel_auroc,
    "average_precision": classification.multilabel_average_precision,
}


def of_two_classes(predictions: Predictions) -> Predictions:
    """Scores `(num_samples,)` of the second class as those of both, `(num_samples, 2)`."""
    check_finite(predictions)
    yes = _probabilities(predictions.scores)
    label = predictions.label
    if label.dtype == np.bool_:
        label = label.astype(np.int64)
    return replace(predictions, scores=np.stack([1 - yes, yes], 1), label=label)


def binary_metrics(result: ClassificationResult, label: npt.NDArray[np.int64]) -> dict[str, float]:
    """Metrics of the second class of two, by name."""
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


@dataclass(frozen=True, kw_only=True)
class MultilabelResult:
    """Everything that the report of a multilabel classifier tells."""

    metrics: dict[str, float]
    """By name, means of the labels; `exact_match` is the share of samples with all labels right."""
    labels: tuple[ClassMetrics, ...]
    probabilities: Floats
    """`(num_samples, num_labels) float64`."""


def multilabel_result(predictions: Predictions, names: Sequence[str]) -> MultilabelResult:
    """Judge scores `(num_samples, num_labels)`, probabilities or logits, by labels 0 and 1.

    Raises:
        EvaluationError: Scores are NaN or infinite, or labels do not fit them.
    """
    check_finite(predictions)
    shape = predictions.scores.shape
    _check(predictions.label, shape)
    probabilities = _probabilities(predictions.scores)
    scores = torch.from_numpy(probabilities)
    target = torch.from_numpy(predictions.label.astype(np.int64))
    found = {
        name: measure(scores, target, shape[1], average="none").double()
        for name, measure in _MEASURES.items()
    }
    support = target.sum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torchmetrics|torch")
        for name, measure in _OF_SCORES.items():
            values = measure(scores, target, shape[1], average="none").double()
            defined = (support > 0) & (support < len(target))
            found[name] = torch.where(defined, values, torch.nan)
    means = {name: float(values.nanmean()) for name, values in found.items()}
    means["exact_match"] = float(classification.multilabel_exact_match(scores, target, shape[1]))
    return MultilabelResult(
        metrics={name: value for name, value in means.items() if not np.isnan(value)},
        labels=_by_label(found, support, names),
        probabilities=probabilities,
    )


def _by_label(
    found: dict[str, torch.Tensor], support: torch.Tensor, names: Sequence[str]
) -> tuple[ClassMetrics, ...]:
    columns = {name: values.tolist() for name, values in found.items()}
    return tuple(
        ClassMetrics(
            name=names[index] if len(names) == len(support) else str(index),
            support=int(support[index]),
            precision=columns["precision"][index],
            recall=columns["recall"][index],
            f1=columns["f1"][index],
            auroc=None if np.isnan(columns["auroc"][index]) else columns["auroc"][index],
        )
        for index in range(len(support))
    )


def _probabilities(scores: npt.NDArray[np.floating]) -> Floats:
    """Scores from 0 to 1 as they are, else the sigmoid of them."""
    values = scores.astype(np.float64)
    if values.min() >= 0 and values.max() <= 1:
        return values
    return np.asarray(torch.sigmoid(torch.from_numpy(values)).numpy())


def _check(label: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
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
