"""History of a training: rows that outlive kills, restarts and resumes, and stay few for days.

Rank 0 appends to `history/training.jsonl` of the run, the first rank of each node to its own
`history/node-<index>.jsonl`, each rank to `history/rank-<rank>.jsonl`; readers combine the rows of
all launches into one history.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    """State of training at a step; rates are averages since the previous row."""

    launch: int
    """Number of the launch of all ranks, over all attempts, from 1."""
    starts: bool = False
    """Whether this is the launch's first row: it continued from `step`."""
    epoch: int
    """Current epoch, from 0."""
    step: int
    """Optimizer steps done."""
    loss: float | None = None
    """Mean loss of rank 0's batches since the previous row; null if not finite."""
    learning_rates: tuple[float, ...] = ()
    """Learning rate of each optimizer, the largest of its groups."""
    samples_per_s: float | None = None
    """Samples trained per second over all ranks, without validation."""
    data_wait: float | None = None
    """Share of the time in which rank 0 waited for batches."""
    parts: dict[str, float] = {}
    """Shares of rank 0's time for `forward`, `backward`, `communication` (backward passes that only
    waited for other ranks), `optimizer` and `checkpoint`; the rest is `data_wait` and all else. On
    accelerators only `checkpoint`."""
    metrics: dict[str, float] = {}
    """Mean over ranks of all that the model has logged, at a validation or an epoch's end."""


class NodeRow(Timed):
    """Load of a node since the previous row."""

    node: str
    cpu: float
    """Share of the node's CPU time that all its processes used."""
    memory: float
    """Share of the node's memory in use."""
    disk_read_bytes_per_s: float | None = None
    """Bytes that all its processes read from its disks; null if unknown."""
    disk_write_bytes_per_s: float | None = None
    """Bytes written to its disks."""
    network_in_bytes_per_s: float | None = None
    """Bytes received by all network interfaces except the loopback."""
    network_out_bytes_per_s: float | None = None
    """Bytes sent by them."""
    gpu: float | None = None
    """Mean use of the node's GPUs, 0 to 1; null if unknown."""
    gpu_memory: float | None = None
    """Share of the GPUs' memory in use."""
    gpu_power_w: float | None = None
    """Power of all GPUs together, in watts."""
    machine: dict[str, str] = {}
    """In a launch's first row: processor, GPUs, and libraries of linear algebra."""
    cpu_power_w: float | None = None
    """Power of all CPUs together, in watts; null if their counters (RAPL) cannot be read."""


class RankRow(Timed):
    """Use of resources by a rank since the previous row."""

    rank: int
    node: str
    cores: float
    """Cores that the rank kept busy."""
    rss_bytes: int
    """Memory of the rank (RSS)."""
    gpu_bytes: int | None = None
    """Memory of its GPU that PyTorch holds; null without a GPU."""
    gpu_peak_bytes: int | None = None
    """Most memory of tensors there so far."""


class EvaluatedRow(Timed):
    """Evaluation of a checkpoint while training continued."""

    run_id: str
    """Run of the evaluation."""
    step: int
    """Optimizer steps of the checkpoint."""
    split: str
    metrics: dict[str, float]
    report: str
    """Path of the report."""


Row = TypeVar("Row", bound=Timed)


class RowWriter(Generic[Row]):
    """Appends rows to one file at growing intervals: some thousand in ten days.

    A row is due after 0.2 % of the time since the file's first row, at least `least_s` and at most
    five minutes. The file's folder is made.
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
        """Whether the next row is due."""
        return time.monotonic() >= self._due_s

    @property
    def has_room(self) -> bool:
        """Whether rows may be written before they are due, as those of validations."""
        return self.is_due or not self._path.exists() or self._path.stat().st_size < _MOST_BYTES

    def append(self, row: Row) -> None:
        """Write a row; a failure loses the row, but does not affect the training."""
        line = row.model_dump_json(exclude_defaults=True)
        inform(self._run, "rows of the history", partial(append_line, self._path, line))
        self._due_s = time.monotonic() + interval_s(self._elapsed_s, self._least_s)


def interval_s(elapsed_s: float, least_s: float) -> float:
    """Return the seconds to the next row, `elapsed_s` after the first."""
    return max(least_s, min(elapsed_s * _SHARE, _LONGEST_S))


@dataclass(frozen=True)
class History:
    """All rows of a training's launches."""

    all_rows: tuple[HistoryRow, ...]
    """Every row, in the order of writing."""
    evaluated: tuple[EvaluatedRow, ...] = ()
    """Evaluations of its checkpoints meanwhile."""

    @cached_property
    def rows(self) -> tuple[HistoryRow, ...]:
        """Rows of the final history, by step: without steps of dead launches done again later."""
        valid: list[HistoryRow] = []
        for row in self.all_rows:
            while valid and valid[-1].step > row.step:
                valid.pop()
            if not row.starts:
                valid.append(row)
        return tuple({(row.step, bool(row.metrics)): row for row in valid}.values())

    @property
    def starts(self) -> tuple[HistoryRow, ...]:
        """First row of each launch: where it continued from."""
        return tuple(row for row in self.all_rows if row.starts)

    @property
    def metrics(self) -> tuple[HistoryRow, ...]:
        """Rows of the final history with metrics."""
        return tuple(row for row in self.rows if row.metrics)

    def best(self, metric: str, mode: str) -> HistoryRow | None:
        """Return the first row with the best metric, `mode` `min` or `max`; None without any."""
        rows = [row for row in self.metrics if math.isfinite(row.metrics.get(metric, math.nan))]
        sign = 1 if mode == "min" else -1
        return min(rows, key=lambda row: sign * row.metrics[metric], default=None)


def training_file(run: RunFolder) -> Path:
    """Return the file of rank 0; rows are `HistoryRow`."""
    return run.history / "training.jsonl"


def evaluated_file(run: RunFolder) -> Path:
    """Return the file of evaluations that watch a run; rows are `EvaluatedRow`."""
    return run.history / "evaluated.jsonl"


def usage_file(run: RunFolder, node_index: int) -> Path:
    """Return the file of the first rank of a node; rows are `NodeRow`."""
    return run.history / f"node-{node_index}.jsonl"


def rank_file(run: RunFolder, rank: int) -> Path:
    """Return the file of a rank; rows are `RankRow`."""
    return run.history / f"rank-{rank}.jsonl"


def read_history(run: RunFolder) -> History:
    """Return the history of a run's training; empty if it has none yet."""
    return History(tuple(read_lines(training_file(run), HistoryRow)), read_evaluated(run))


def read_evaluated(run: RunFolder) -> tuple[EvaluatedRow, ...]:
    """Return the evaluations of a run's checkpoints during training, in the order of writing."""
    return tuple(read_lines(evaluated_file(run), EvaluatedRow))


def read_usage(run: RunFolder) -> dict[str, list[NodeRow]]:
    """Return the load of each node, by its index, as `node-0`, in order."""
    return {path.stem: read_lines(path, NodeRow) for path in _files(run, "node")}


def read_ranks(run: RunFolder) -> dict[int, list[RankRow]]:
    """Return the use of resources by each rank, in order of the ranks."""
    return {_number(path): read_lines(path, RankRow) for path in _files(run, "rank")}


class NodeLoad(Record):
    """Current load of nodes and ranks."""

    nodes: tuple[NodeRow, ...] = ()
    ranks: tuple[RankRow, ...] = ()


def newest_use(run: RunFolder) -> NodeLoad:
    """Return the newest row of each node and rank, without those of an earlier, larger launch."""
    return NodeLoad(
        nodes=_newest(_files(run, "node"), NodeRow), ranks=_newest(_files(run, "rank"), RankRow)
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
    """Return all curves of a training: loss, metrics in the order of first logging, learning rates.

    Metrics of evaluations are named `<split>/<metric>`.
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
    """Return at most `most` points, with the first, the last, and the peaks in between.

    Each stretch of equal length keeps its least and its greatest value; pure.
    """
    if len(points) <= most:
        return points
    middle, stretches = points[1:-1], (most - 2) // 2
    cuts = [round(index * len(middle) / stretches) for index in range(stretches + 1)]
    chosen = [points[0]]
    for begin, end in itertools.pairwise(cuts):
        stretch = middle[begin:end]
        least, most_of = min(stretch, key=_value), max(stretch, key=_value)
        chosen += sorted({least, most_of})
    return [*chosen, points[-1]]


def _value(point: tuple[float, float]) -> float:
    return math.inf if math.isnan(point[1]) else point[1]


def facts_of_all(machines: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts of several machines by name; all values where they differ."""
    values = dict.fromkeys(fact for each in machines for fact in each.items())
    names = dict.fromkeys(name for name, _ in values)
    return {name: " | ".join(each for of, each in values if of == name) for name in names}
