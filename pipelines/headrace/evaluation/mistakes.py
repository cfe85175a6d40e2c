"""Samples that the model got most wrong, and the classes it confuses most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.evaluation.merge import Predictions
from headrace.evaluation.metrics import ClassificationResult

_MAX_PAIRS = 10
_MAX_MISTAKES = 20


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """Two classes of which one is taken for the other."""

    true: str
    """Class of the samples."""
    predicted: str
    """Class they were taken for."""
    count: int
    """How many were."""
    share: float
    """Share of the true class."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One sample that the model got wrong."""

    sample_id: int
    """Number of the sample in the dataset."""
    true: str
    """Class, or value, it has."""
    predicted: str
    """Class, or value, the model gave."""
    weight: float
    """Confidence of the model, or the absolute error."""


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
            count=int(wrong[row, column]),
            share=float(wrong[row, column] / result.classes[row].support),
        )
        for row, column in pairs
        if wrong[row, column]
    )


def classification_mistakes(
    predictions: Predictions, result: ClassificationResult
) -> tuple[Mistake, ...]:
    """The twenty wrong samples of which the model was most sure."""
    confidence = result.probabilities.max(1)
    wrong = np.flatnonzero(result.predicted != predictions.label)
    names = [each.name for each in result.classes]
    return tuple(
        Mistake(
            sample_id=int(predictions.sample_id[row]),
            true=names[int(predictions.label[row])],
            predicted=names[int(result.predicted[row])],
            weight=float(confidence[row]),
        )
        for row in _largest(wrong, confidence)
    )


def regression_mistakes(predictions: Predictions) -> tuple[Mistake, ...]:
    """The twenty samples with the largest errors."""
    errors = np.abs(predictions.scores - predictions.label)
    return tuple(
        Mistake(
            sample_id=int(predictions.sample_id[row]),
            true=f"{float(predictions.label[row]):.6g}",
            predicted=f"{float(predictions.scores[row]):.6g}",
            weight=float(errors[row]),
        )
        for row in _largest(np.flatnonzero(errors > 0), errors)
    )


def _largest(rows: npt.NDArray[Any], weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows[np.argsort(-weight[rows], kind="stable")][:_MAX_MISTAKES]
