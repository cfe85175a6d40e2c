"""The history of a training: rows that outlive kills, restarts and resumes, few also after days.

Rank 0 appends to `history/training.jsonl` of the run, the first rank of each node to its own
`history/node-<index>.jsonl`, each rank to `history/rank-<rank>.jsonl`; whoever reads makes one
history of what all launches wrote.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from headrace.files.layout import RunFolder
from headrace.files.lines import append_line, read_last_line, read_lines
from headrace.informing import inform
from headrace.record import Figures, Record

_SHARE = 0.002
_LONGEST_S = 300.0
_MOST_BYTES = 32 * 2**20

PARTS = ("forward", "backward", "communication", "optimizer", "checkpoint")
"""Parts of a step's time, in their order."""


class Timed(Figures):
    """A row with its time."""

    at: float
    """Seconds since the epoch."""


class HistoryRow(Timed):
    """How training stood at a step; figures that are rates are those since the row before."""

    launch: int
    """Number of the launch of all ranks, over all attempts, from 1."""
    starts: bool = False
    """Whether this is the launch's first row: it went on from `step`."""
    epoch: int
    """Epoch under way, from 0."""
    step: int
    """Optimizer steps done."""
    loss: float | None = None
    """Mean loss of rank 0's batches since the row before; null when it is not finite."""
    learning_rates: tuple[float, ...] = ()
    """Of each optimizer, the largest of its groups."""
    samples_per_s: float | None = None
    """Samples trained a second over all ranks; validation is not counted."""
    data_wait: float | None = None
    """Share of the time that rank 0 has waited for batches."""
    parts: dict[str, float] = {}
    """Shares of rank 0's time that went to `forward`, `backward`, `communication` (backward passes
    that only waited for other ranks), `optimizer` and `checkpoint`; what is left are `data_wait`
    and all else. On accelerators only `checkpoint`."""
    metrics: dict[str, float] = {}
    """All that the model has logged, the mean over ranks, at a validation or an epoch's end."""


class UsageRow(Timed):
    """How busy a node was since the row before."""

    node: str
    cpu: float
    """Share of the node's CPU time that was used, by anybody."""
    memory: float
    """Share of the node's memory in use."""
    disk_read_bytes_per_s: float | None = None
    """Read from all disks of the node, by anybody; null where they cannot be asked."""
    disk_write_bytes_per_s: float | None = None
    """Written to them."""
    network_in_bytes_per_s: float | None = None
    """Received by all network interfaces but the loopback."""
    network_out_bytes_per_s: float | None = None
    """Sent by them."""
    gpu: float | None = None
    """Mean use of the node's GPUs, 0 to 1; null where none can be asked."""
    gpu_memory: float | None = None
    """Share of the GPUs' memory in use."""
    gpu_power_w: float | None = None
    """Power of all GPUs together, in watts."""


class RankRow(Timed):
    """What a rank took since the row before."""

    rank: int
    node: str
    cores: float
    """Cores that the rank kept busy."""
    rss_bytes: int
    """Memory of the rank (RSS)."""
    gpu_bytes: int | None = None
    """Memory of its GPU that PyTorch holds; null without one."""
    gpu_peak_bytes: int | None = None
    """The most that tensors have taken there so far."""


class EvaluatedRow(Timed):
    """What a checkpoint was judged to be while training went on."""

    run_id: str
    """Run that evaluated it."""
    step: int
    """Optimizer steps of the checkpoint."""
    split: str
    metrics: dict[str, float]
    report: str
    """Path of the report."""


Row = TypeVar("Row", bound=Timed)


class RowWriter(Generic[Row]):
    """Appends rows to one file, ever more rarely: some thousand in ten days.

    A row is due when 0.2 % of the time since the file's first one has passed, at least `least_s`
    and at most five minutes. The file's folder is made.
    """

    def __init__(self, path: Path, kind: type[Row], least_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._run = path, RunFolder(path.parents[1])
        self._least_s = least_s
        self.before: Sequence[Row] = read_lines(path, kind)
        self._began_at = self.before[0].at if self.before else time.time()
        self._due_s = time.monotonic() + interval_s(self._elapsed_s, least_s)

    @property
    def _elapsed_s(self) -> float:
        return time.time() - self._began_at

    @property
    def is_due(self) -> bool:
        """Whether it is time for another row."""
        return time.monotonic() >= self._due_s

    @property
    def has_room(self) -> bool:
        """Whether rows may be written that are not due, such as those of validations."""
        return self.is_due or not self._path.exists() or self._path.stat().st_size < _MOST_BYTES

    def append(self, row: Row) -> None:
        """Write a row; a failure costs the row, not the work."""
        line = row.model_dump_json(exclude_defaults=True)
        inform(self._run, "rows of the history", partial(append_line, self._path, line))
        self._due_s = time.monotonic() + interval_s(self._elapsed_s, self._least_s)


def interval_s(elapsed_s: float, least_s: float) -> float:
    """Seconds to the next row when so many have passed since the first."""
    return max(least_s, min(elapsed_s * _SHARE, _LONGEST_S))


@dataclass(frozen=True)
class History:
    """All that the launches of a training wrote."""

    told: tuple[HistoryRow, ...]
    """Every row, as they came."""
    evaluated: tuple[EvaluatedRow, ...] = ()
    """What its checkpoints were judged to be meanwhile."""

    @cached_property
    def rows(self) -> tuple[HistoryRow, ...]:
        """What counts in the end, by step: what a dead launch did and another repeated is out."""
        kept: list[HistoryRow] = []
        for row in self.told:
            while kept and kept[-1].step > row.step:
                kept.pop()
            if not row.starts:
                kept.append(row)
        return tuple({(row.step, bool(row.metrics)): row for row in kept}.values())

    @property
    def starts(self) -> tuple[HistoryRow, ...]:
        """Where each launch went on from."""
        return tuple(row for row in self.told if row.starts)

    @property
    def metrics(self) -> tuple[HistoryRow, ...]:
        """The rows that count and have metrics."""
        return tuple(row for row in self.rows if row.metrics)

    def best(self, metric: str, mode: str) -> HistoryRow | None:
        """The first row in which a metric is best, `mode` is `min` or `max`; None without any."""
        rows = [row for row in self.metrics if math.isfinite(row.metrics.get(metric, math.nan))]
        sign = 1 if mode == "min" else -1
        return min(rows, key=lambda row: sign * row.metrics[metric], default=None)


def training_file(run: RunFolder) -> Path:
    """Where rank 0 appends; rows are `HistoryRow`."""
    return run.history / "training.jsonl"


def evaluated_file(run: RunFolder) -> Path:
    """Where evaluations that watch a run append; rows are `EvaluatedRow`."""
    return run.history / "evaluated.jsonl"


def usage_file(run: RunFolder, node_index: int) -> Path:
    """Where the first rank of a node appends; rows are `UsageRow`."""
    return run.history / f"node-{node_index}.jsonl"


def rank_file(run: RunFolder, rank: int) -> Path:
    """Where a rank appends; rows are `RankRow`."""
    return run.history / f"rank-{rank}.jsonl"


def read_history(run: RunFolder) -> History:
    """The history of a run's training; empty when there is none yet."""
    return History(tuple(read_lines(training_file(run), HistoryRow)), read_evaluated(run))


def read_evaluated(run: RunFolder) -> tuple[EvaluatedRow, ...]:
    """What a run's checkpoints were judged to be while it trained, as they came."""
    return tuple(read_lines(evaluated_file(run), EvaluatedRow))


def read_usage(run: RunFolder) -> dict[str, list[UsageRow]]:
    """How busy each node was, by its place, as in `node-0`, in order of the places."""
    return {path.stem: read_lines(path, UsageRow) for path in _files(run, "node")}


def read_ranks(run: RunFolder) -> dict[int, list[RankRow]]:
    """What each rank took, in order of the ranks."""
    return {_number(path): read_lines(path, RankRow) for path in _files(run, "rank")}


class Load(Record):
    """How busy nodes and ranks are just now."""

    nodes: tuple[UsageRow, ...] = ()
    ranks: tuple[RankRow, ...] = ()


def newest_use(run: RunFolder) -> Load:
    """The newest row of each node and rank, but for those of an earlier, larger launch."""
    return Load(
        nodes=_newest(_files(run, "node"), UsageRow),
        ranks=_newest(_files(run, "rank"), RankRow),
    )


def _newest(files: Iterable[Path], kind: type[Row]) -> tuple[Row, ...]:
    rows = [row for row in (read_last_line(path, kind) for path in files) if row is not None]
    newest_at = max((row.at for row in rows), default=0.0)
    return tuple(row for row in rows if newest_at - row.at <= 2 * _LONGEST_S)


def _files(run: RunFolder, of: str) -> list[Path]:
    return sorted(run.history.glob(f"{of}-*.jsonl"), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


Points = Sequence[tuple[float, float]]
"""Optimizer steps and values."""


class Series(NamedTuple):
    """One curve."""

    name: str
    kind: Literal["loss", "metric", "lr"]
    points: Points


def series_of(history: History) -> list[Series]:
    """All curves of a training: the loss, metrics as they were first logged, learning rates.

    What evaluations gave meanwhile is named `<split>/<metric>`.
    """
    losses = [(row.step, row.loss) for row in history.rows if row.loss is not None]
    found = [Series("loss of training", "loss", losses)] if losses else []
    metrics: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in history.metrics:
        for name, value in row.metrics.items():
            metrics[name].append((row.step, value))
    for evaluated in sorted(history.evaluated, key=lambda row: row.step):
        for name, value in evaluated.metrics.items():
            metrics[f"{evaluated.split}/{name}"].append((evaluated.step, value))
    found += [Series(name, "metric", points) for name, points in metrics.items()]
    rates: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in history.rows:
        for index, rate in enumerate(each.learning_rates):
            rates[f"optimizer {index + 1}"].append((each.step, rate))
    return found + [Series(name, "lr", points) for name, points in rates.items()]


def thinned(points: Points, most: int) -> Points:
    """At most so many points, among them the first, the last, and the peaks in between.

    Of each stretch of equal length the least and the greatest value stay; pure.
    """
    if len(points) <= most:
        return points
    middle, stretches = points[1:-1], (most - 2) // 2
    cuts = [round(index * len(middle) / stretches) for index in range(stretches + 1)]
    kept = [points[0]]
    for begin, end in itertools.pairwise(cuts):
        stretch = middle[begin:end]
        kept += sorted({min(stretch, key=_value), max(stretch, key=_value)})
    return [*kept, points[-1]]


def _value(point: tuple[float, float]) -> float:
    return math.inf if math.isnan(point[1]) else point[1]
