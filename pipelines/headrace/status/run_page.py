"""All data of a run's page: its details, curves, checkpoints, logs, and user actions."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.status.logs import LogName, log_names, report_address
from headrace.status.run import LedgerRows, traits_of
from headrace.status.run_details import RunDetails, details_of
from headrace.status.run_list import ActView, acts_of
from headrace.status.step import AttemptView, attempt_views
from headrace.status.training import (
    BestValue,
    CheckpointView,
    RunCurves,
    best_value,
    checkpoints_of,
    curves_of,
)
from headrace.steps.history import read_history


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
    """Return all that is known of a run now.

    Raises:
        UnknownNameError: There is no run of that id.
    """
    record = open_ledger().run(run_id)
    rows, traits = LedgerRows.of([record]), traits_of(record)
    attempts, leases = rows.attempts_of(run_id), rows.leases_of(run_id)
    folder = RunFolder(Path(record.folder))
    history = read_history(folder)
    last = next(
        (each for each in reversed(history.all_rows) if each.samples_per_s is not None), None
    )
    details = details_of(record, rows).model_copy(update={"dashboard_url": ""})
    return RunPage(
        **dict(details),
        now=time.time(),
        can_act=can_act,
        tensorboard=has_events(folder),
        best=best_value(history, traits.monitor, traits.monitor_mode),
        throughput=last.samples_per_s if last else None,
        data_wait=last.data_wait if last else None,
        epoch=history.all_rows[-1].epoch if history.all_rows else None,
        attempts=attempt_views(run_id, attempts),
        curves=curves_of(run_id, history),
        checkpoints=checkpoints_of(folder),
        logs=tuple(log_names(attempts, leases)),
        report=report_address(run_id, attempts),
        acts=acts_of(run_id),
        rerun=f"headrace rerun {run_id}",
    )


def has_events(run: RunFolder) -> bool:
    """Whether there is data for TensorBoard."""
    return any(run.tensorboard.rglob("events.out.tfevents.*"))
