"""All data of a run's page: details, curves, checkpoints, logs, acts; and comparisons of runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from headrace.checkpoints.files import best_of
from headrace.files.layout import RunFolder
from headrace.record import Record
from headrace.runs.names import named, shown_by
from headrace.runs.origin import Beside, origin, side_by_side
from headrace.status.logs import LogName, log_files, report_address
from headrace.status.run import RunRows
from headrace.status.run_details import RunDetails, details_of
from headrace.status.run_list import ActView, acts_of
from headrace.status.step import AttemptView, attempt_views
from headrace.status.traits import traits_of
from headrace.steps.history import History, read_history, series_of, thinned

MOST_POINTS = 2000
"""Points of a curve that are shown, its peaks among them."""

_STEP = re.compile(r"-(\d+)\.ckpt")


class BestValue(Record):
    """The best value of the monitored metric."""

    name: str
    value: float
    step: int
    """Optimizer steps."""


class CheckpointView(Record):
    """A checkpoint of the run."""

    name: str
    step: int | None
    """Optimizer steps; null for the final one."""
    bytes: int
    at: float
    """When it was written, seconds since the epoch."""
    is_best: bool


class Curve(Record):
    """One curve; null for values that are not finite."""

    name: str
    kind: Literal["loss", "metric", "lr"]
    x: tuple[float, ...]
    """Optimizer steps."""
    y: tuple[float | None, ...]


class RunCurves(Record):
    """The curves of a run or trial."""

    run_id: str
    """`RUN`, or `SUITE:NUMBER` of a trial."""
    series: tuple[Curve, ...]


class CurvesPage(Record):
    """The curves of some runs."""

    runs: tuple[RunCurves, ...]


class ComparePage(Record):
    """Differences between some runs or trials."""

    names: tuple[str, ...]
    rows: tuple[Beside, ...]
    """A value of each, in the order of the names."""


class RunPage(RunDetails):
    """All data of a run's page."""

    now: float
    can_act: bool
    """Whether this user may act on it."""
    tensorboard: bool
    """Whether there is data for TensorBoard."""
    best: BestValue | None
    throughput: float | None
    """Samples per second over all ranks."""
    data_wait: float | None
    """Share of the time in which training waits for data."""
    epoch: int | None
    """Current epoch, from 0."""
    attempts: tuple[AttemptView, ...]
    curves: RunCurves
    checkpoints: tuple[CheckpointView, ...]
    logs: tuple[LogName, ...]
    report: str
    """The report's address, relative to the pages' address; empty without a report."""
    acts: tuple[ActView, ...]
    rerun: str
    """Command that requests the same once more."""


def run_page(run_id: str, *, can_act: bool) -> RunPage:
    """Return all that is known of a run or trial now.

    Raises:
        UnknownNameError: No run or trial has that name.
    """
    rows = RunRows.named(run_id)
    run_id = rows.run.run_id
    traits, folder = traits_of(rows.run.folder), RunFolder(Path(rows.run.folder))
    history = read_history(folder)
    last = next(
        (each for each in reversed(history.all_rows) if each.samples_per_s is not None), None
    )
    details = details_of(rows).model_copy(update={"dashboard_url": ""})
    return RunPage(
        **dict(details),
        now=time.time(),
        can_act=can_act,
        tensorboard=has_events(folder),
        best=best_value(history, traits.monitor, traits.monitor_mode),
        throughput=last.samples_per_s if last else None,
        data_wait=last.data_wait if last else None,
        epoch=history.all_rows[-1].epoch if history.all_rows else None,
        attempts=attempt_views(run_id, rows.attempts),
        curves=curves_of(run_id, history),
        checkpoints=checkpoints_of(folder),
        logs=tuple(
            LogName(step=row.step, attempt=row.attempt, name=file.stem)
            for row, file in log_files(rows)
        ),
        report=report_address(rows),
        acts=acts_of(run_id),
        rerun=f"headrace rerun {run_id}",
    )


def has_events(run: RunFolder) -> bool:
    """Whether there is data for TensorBoard."""
    return any(run.tensorboard.rglob("events.out.tfevents.*"))


def best_value(history: History, metric: str | None, mode: str) -> BestValue | None:
    """Return the best value so far; None without a monitored metric or any value."""
    row = history.best(metric, mode) if metric else None
    if row is None or metric is None:
        return None
    return BestValue(name=metric, value=row.metrics[metric], step=row.step)


def checkpoints_of(folder: RunFolder) -> tuple[CheckpointView, ...]:
    """Return the checkpoints of a run, the newest first."""
    best = best_of(folder.checkpoints)
    found = []
    for file in folder.checkpoints.glob("*.ckpt"):
        with suppress(FileNotFoundError):  # training removes older ones
            found.append(_checkpoint(file, is_best=best is not None and best.file == file.name))
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))


def _checkpoint(file: Path, *, is_best: bool) -> CheckpointView:
    step = _STEP.search(file.name)
    parts = file.iterdir() if file.is_dir() else (file,)  # sharded: a folder of all ranks' files
    return CheckpointView(
        name=file.name,
        step=int(step[1]) if step else None,
        bytes=sum(part.stat().st_size for part in parts),
        at=file.stat().st_mtime,
        is_best=is_best,
    )


def curves_page(names: Iterable[str]) -> CurvesPage:
    """Return the curves of runs, and of trials by `SUITE:NUMBER`.

    Raises:
        UnknownNameError: No run has that id.
    """
    return CurvesPage(
        runs=tuple(curves_of(name, read_history(named(name).folder)) for name in names)
    )


def compare_page(names: Sequence[str]) -> ComparePage:
    """Return what differs between runs or trials: metrics, recipe, data, code, packages.

    A suite is compared by its best trial.

    Raises:
        UnknownNameError: The run or trial does not exist.
        StepError: A folder is gone or damaged.
    """
    shown = [shown_by(name).name for name in names]
    return ComparePage(names=tuple(shown), rows=side_by_side([*map(origin, shown)]))


def curves_of(run_id: str, history: History) -> RunCurves:
    """Return the curves of a run by its history."""
    found = []
    for name, kind, points in series_of(history):
        steps, values = zip(*thinned(points, MOST_POINTS), strict=True)
        found.append(Curve(name=name, kind=kind, x=steps, y=values))
    return RunCurves(run_id=run_id, series=tuple(found))
