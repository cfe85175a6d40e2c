"""Predictions of all shards as one table in which each sample is found exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import StepError
from headrace.files.atomic import write_bytes

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Labels and scores, row by row."""

    sample_id: npt.NDArray[np.int64]
    """`(num_samples,) int64`."""
    label: npt.NDArray[Any]
    """`(num_samples,)`, the class index or the value to predict."""
    scores: npt.NDArray[Any]
    """`(num_samples, num_classes) float` or `(num_samples,) float`."""


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write predictions as `.npz`, atomically; equal predictions give equal bytes."""
    buffer = BytesIO()
    np.savez(
        buffer,
        sample_id=predictions.sample_id,
        label=predictions.label,
        scores=predictions.scores,
    )
    write_bytes(path, buffer.getvalue())


def read_predictions(path: Path) -> Predictions:
    """Read what `write_predictions` wrote.

    Raises:
        StepError: The file is not there.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            return Predictions(
                sample_id=content["sample_id"], label=content["label"], scores=content["scores"]
            )
    except FileNotFoundError:
        raise StepError(
            f"The predictions {path} are missing", "Run the evaluation again."
        ) from None


def merge(parts: Iterable[Predictions], expected: npt.NDArray[np.int64]) -> Predictions:
    """Put parts together in the order of the sample ids.

    The result does not depend on the order of the parts or on how many there are.

    Args:
        parts: Predictions of the shards.
        expected: `(num_samples,) int64`, ids of the samples that must be there, once each.

    Raises:
        StepError: Samples are missing, doubled or unknown; names counts and examples.
    """
    parts = tuple(parts)
    sample_id = _joined([part.sample_id for part in parts])
    _check_exactly_once(sample_id, expected)
    order = np.argsort(sample_id, kind="stable")
    return Predictions(
        sample_id=sample_id[order],
        label=_joined([part.label for part in parts])[order],
        scores=_joined([part.scores for part in parts])[order],
    )


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _check_exactly_once(found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]) -> None:
    ids, counts = np.unique(found, return_counts=True)
    faults = [
        _fault("missing", np.setdiff1d(expected, ids)),
        _fault("counted more than once", ids[counts > 1]),
        _fault("not of this split", np.setdiff1d(ids, expected)),
    ]
    told = "; ".join(fault for fault in faults if fault)
    if told:
        raise StepError(
            f"Of {len(expected)} samples not each was predicted exactly once: {told}",
            "Run the evaluation again; if it persists, check the dataset with `headrace verify`.",
        )


def _fault(name: str, ids: npt.NDArray[np.int64]) -> str:
    if not len(ids):
        return ""
    examples = ", ".join(str(number) for number in ids[:_EXAMPLES])
    return f"{len(ids)} {name} (sample ids {examples}{', …' if len(ids) > _EXAMPLES else ''})"
