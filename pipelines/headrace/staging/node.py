"""What the stage step runs on each node."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StepCancelledError
from headrace.files.atomic import read_record, write_record
from headrace.leases.cancellable_call import wanted
from headrace.recipe.site import StoreOptions, Tier
from headrace.record import Record
from headrace.staging.peer_group import PeerGroup
from headrace.staging.staged import ensure_staged
from headrace.staging.staged_copy import StagedCopy, StagingOptions

_INTERVAL_S = 0.5


class NodeProgress(Record):
    """How far one node is; a small file that the step driver reads."""

    done_bytes: int
    """Bytes that lie on the node, verified."""
    total_bytes: int
    """Bytes that will lie there."""


@dataclass(frozen=True, kw_only=True)
class NodeJob:
    """What one node is to stage."""

    dataset: str
    """Folder or URL of the packed dataset."""
    tiers: tuple[Tier, ...]
    """Tiers of the site, fastest first."""
    splits: tuple[str, ...] | None
    """Splits to stage; None for all."""
    verify: bool
    """Compare checksums."""
    partial: bool
    """Stage what fits when no tier has room for all."""
    only: frozenset[str] | None
    """Files of the shards to stage now; null: all of them."""
    skipped: frozenset[str]
    """Files of damaged shards that are left out."""
    s3: StoreOptions
    """How to reach S3."""
    group: PeerGroup | None
    """Nodes that pass shards on to each other; None when this one stages alone."""
    progress_file: str
    """Where the node tells how far it is, on shared storage."""


def stage_node(job: NodeJob) -> StagedCopy:
    """Stage the dataset on this node."""
    return ensure_staged(
        job.dataset,
        job.tiers,
        job.splits,
        job.verify,
        Ticker(Path(job.progress_file)),
        StagingOptions(
            partial=job.partial, only=job.only, skipped=job.skipped, s3=job.s3, group=job.group
        ),
    )


class Ticker:
    """Writes the progress of a node, not more often than twice a second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written_at = float("-inf")

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take in how far the node is.

        Raises:
            StepCancelledError: Nobody waits for the copy any more.
        """
        if not wanted():
            raise StepCancelledError("Staging was stopped: its step was cancelled or has gone")
        now = time.monotonic()
        if done_bytes == total_bytes or now - self._written_at > _INTERVAL_S:
            progress = NodeProgress(done_bytes=done_bytes, total_bytes=total_bytes)
            write_record(self._file, progress)
            self._written_at = now


def total_done_bytes(files: Iterable[Path]) -> int:
    """Bytes that all nodes have by now."""
    found = (read_record(file, NodeProgress) for file in files)
    return sum(progress.done_bytes for progress in found if progress is not None)
