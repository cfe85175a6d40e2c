"""The function that the evaluate step sends to the workers.

It is light to import: the step's driver sends it before it has loaded PyTorch itself.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from headrace.evaluation.plan import ShardTask


@dataclass(frozen=True, kw_only=True)
class PredictJob:
    """One shard to score."""

    run_folder: str
    """Folder of the run, with recipe and site."""
    dataset: str
    """Folder of the packed dataset."""
    checkpoint: str
    """Checkpoint with the weights."""
    task: ShardTask
    """Which samples."""
    part: str
    """File for the predictions."""


def predict_shard(job: PredictJob) -> int:
    """Score the samples of one shard and write the predictions, atomically.

    Returns:
        Number of samples.
    """
    num_samples: int = importlib.import_module("headrace.evaluation.predict").score(job)
    return num_samples
