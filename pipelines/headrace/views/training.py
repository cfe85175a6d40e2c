"""What a training gives and takes: its best value, nodes, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.checkpoints.files import best_of
from headrace.files.layout import RunFolder
from headrace.record import Record
from headrace.steps.history import History, RankRow, Use

_STEP = re.compile(r"-(\d+)\.ckpt")


class BestValue(Record):
    """The best value of what training monitors."""

    name: str
    value: float
    step: int
    """Optimizer steps."""


class RankUse(Record):
    """What a rank takes just now."""

    rank: int
    cores: float
    rss_bytes: int
    gpu_bytes: int | None
    gpu_peak_bytes: int | None


class NodeRow(Record):
    """How busy a node is just now; shares are 0 to 1."""

    node: str
    cpu: float
    memory: float
    gpu: float | None
    gpu_memory: float | None
    power_w: float | None
    """Of all its GPUs."""
    ranks: tuple[RankUse, ...]


class CheckpointRow(Record):
    """A checkpoint of the run."""

    name: str
    step: int | None
    """Optimizer steps; null for the final one."""
    bytes: int
    at: float
    """When it was written, seconds since the epoch."""
    is_best: bool


def best_value(history: History, metric: str | None, mode: str) -> BestValue | None:
    """The best value so far; None without a metric that is monitored, or any value."""
    row = history.best(metric, mode) if metric else None
    if row is None or metric is None:
        return None
    return BestValue(name=metric, value=row.metrics[metric], step=row.step)


def node_rows(use: Use) -> Iterator[NodeRow]:
    """The nodes of a training under way, with their ranks."""
    for each in use.nodes:
        ranks = (rank for rank in use.ranks if rank.node == each.node)
        yield NodeRow(
            node=each.node,
            cpu=each.cpu,
            memory=each.memory,
            gpu=each.gpu,
            gpu_memory=each.gpu_memory,
            power_w=each.gpu_power_w,
            ranks=tuple(RankUse(**_told(rank)) for rank in ranks),
        )


def _told(rank: RankRow) -> dict[str, Any]:
    return rank.model_dump(include=set(RankUse.model_fields))


def checkpoint_rows(folder: RunFolder) -> Iterator[CheckpointRow]:
    """Checkpoints of a run, the newest first."""
    best = best_of(folder.checkpoints)
    found = []
    for file in folder.checkpoints.glob("*.ckpt"):
        with suppress(FileNotFoundError):  # training removes older ones
            found.append(_checkpoint(file, is_best=best is not None and best.file == file.name))
    return iter(sorted(found, key=lambda row: row.at, reverse=True))


def _checkpoint(file: Path, *, is_best: bool) -> CheckpointRow:
    step = _STEP.search(file.name)
    parts = file.iterdir() if file.is_dir() else (file,)  # ranks write a folder together
    return CheckpointRow(
        name=file.name,
        step=int(step[1]) if step else None,
        bytes=sum(part.stat().st_size for part in parts),
        at=file.stat().st_mtime,
        is_best=is_best,
    )
