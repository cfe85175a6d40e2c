"""The functions that the evaluate step sends to the workers, and what they are asked.

They are light to import. The work is done by a process of its own, which `predict` runs; it is
forked from one that has imported PyTorch, and keeps model and data for the next shard.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from headrace.clusters.cancellable_call import node_name, wanted
from headrace.errors import WorkerLostError
from headrace.evaluation.plan import ShardTask
from headrace.processes import ProcessIdentity
from headrace.staging.peer_group import PeerGroup
from headrace.steps.children import Child
from headrace.steps.kept_process import KeptProcess
from headrace.steps.model_process import python_module, start_forked

logger = logging.getLogger(__name__)

_NUM_TRIES = 3
_PREDICTOR = KeptProcess(start_forked)


@dataclass(frozen=True, kw_only=True)
class PredictorSpec:
    """The process that does the work on a node."""

    logs: str
    """Folder for its log."""
    env: tuple[tuple[str, str], ...]
    """Names and values of environment variables on top of the worker's."""
    groups: Mapping[str, PeerGroup]
    """Nodes that pass shards on to each other, as each one sees them, by its name."""

    def child(self) -> Child:
        """How it is started."""
        place = ProcessIdentity.of()
        return Child(
            name="predictor",
            command=python_module("headrace.evaluation.predict"),
            log=Path(self.logs) / f"predictor-{place.host}-{place.pid}.log",
            env=dict(self.env),
        )


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
    group: PeerGroup | None = None
    """Nodes that hold what this one lacks; the node that is asked fills it in."""


@dataclass(frozen=True, kw_only=True)
class ConcludeJob:
    """Predictions of all shards to judge."""

    step_folder: str
    """Folder of the evaluate step."""
    group: PeerGroup | None = None
    """Nodes that hold what this one lacks; the node that is asked fills it in."""


def predict_shard(asked: tuple[PredictorSpec, PredictJob]) -> tuple[int, str]:
    """Score the samples of one shard and write the predictions, atomically.

    Returns:
        Number of samples; and why they were scored again, empty when they were not.
    """
    return cast("tuple[int, str]", _answer(*asked))


def conclude_split(asked: tuple[PredictorSpec, ConcludeJob]) -> dict[str, Any]:
    """Merge and judge the predictions, and write the report; gives the outputs of the step."""
    return cast("dict[str, Any]", _answer(*asked))


def _answer(spec: PredictorSpec, job: PredictJob | ConcludeJob) -> Any:
    child = spec.child()
    if spec.groups:
        job = replace(job, group=spec.groups.get(node_name()))
    for _ in range(_NUM_TRIES - 1):
        try:
            return _PREDICTOR.call(child, job, wanted)
        except WorkerLostError as error:
            logger.warning("Trying again: %s", error)
    return _PREDICTOR.call(child, job, wanted)
