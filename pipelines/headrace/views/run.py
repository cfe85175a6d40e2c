"""The page of a run: how it stands, its curves, nodes, attempts, checkpoints, logs."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.runs.overview import overview
from headrace.steps.history import read_history
from headrace.views.acts import ActRow, act_rows
from headrace.views.curves import RunCurves, curves_of
from headrace.views.facts import facts_of
from headrace.views.logs import LogName, log_names, report_address
from headrace.views.runs import RunRow, run_rows
from headrace.views.steps import AttemptRow, StepRow, attempt_rows, step_rows
from headrace.views.tensorboard import has_events
from headrace.views.training import (
    BestValue,
    CheckpointRow,
    NodeRow,
    best_value,
    checkpoint_rows,
    node_rows,
)


class RunPage(RunRow):
    """All that the page of a run shows."""

    now: float
    suite: bool
    folder: str
    owner: str
    can_act: bool
    """Whether who asks may act on it."""
    dashboard: str
    """The lease whose Dask dashboard is there; empty without one."""
    tensorboard: bool
    """Whether TensorBoard has anything to show."""
    eta_error_s: float | None
    """Half of the interval in which the end lies, with a probability of 0.8."""
    predicted_s: float | None
    """What it was expected to take when it began."""
    waits_for: str
    damage: str
    """Why no more is known: a file that cannot be read; else empty."""
    best: BestValue | None
    throughput: float | None
    """Samples a second over all ranks."""
    data_wait: float | None
    """Share of the time in which training waits for data."""
    epoch: int | None
    """Epoch under way, from 0."""
    steps: tuple[StepRow, ...]
    attempts: tuple[AttemptRow, ...]
    curves: RunCurves
    nodes: tuple[NodeRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    logs: tuple[LogName, ...]
    report: str
    """Address of the report below that of the pages; empty without one."""
    images: dict[str, str]
    """Digests of the images of its containers when it began, by path."""
    acts: tuple[ActRow, ...]
    rerun: str
    """Words that ask for the same once more."""


def run_page(run_id: str, *, can_act: bool) -> RunPage:
    """How a run stands now.

    Raises:
        UnknownNameError: There is no such run.
    """
    record = open_ledger().run(run_id)
    (row,), view, facts = run_rows([record]), overview(run_id), facts_of(record)
    folder = RunFolder(Path(record.folder))
    history = read_history(folder)
    attempts = open_ledger().attempts(run_id)
    last = next((each for each in reversed(history.told) if each.samples_per_s is not None), None)
    ahead, more = view.ahead, dict(row)
    more["eta_s"] = ahead.eta_s if ahead else row.eta_s
    return RunPage(
        **more,
        now=time.time(),
        suite=row.kind == "suite",
        folder=record.folder,
        owner=record.owner,
        can_act=can_act,
        dashboard=view.dashboard_lease,
        tensorboard=has_events(folder),
        eta_error_s=ahead.eta_half_s if ahead else None,
        predicted_s=ahead.predicted_s if ahead else None,
        waits_for=view.waits_for,
        damage=view.damage,
        best=best_value(history, facts.monitor, facts.monitor_mode),
        throughput=last.samples_per_s if last else None,
        data_wait=last.data_wait if last else None,
        epoch=history.told[-1].epoch if history.told else None,
        steps=tuple(step_rows(view.steps, attempts)),
        attempts=tuple(attempt_rows(run_id, attempts)),
        curves=curves_of(run_id, history),
        nodes=tuple(node_rows(view.use)),
        checkpoints=tuple(checkpoint_rows(folder)),
        logs=tuple(log_names(run_id)),
        report=report_address(run_id),
        images=view.images,
        acts=act_rows(run_id),
        rerun=f"headrace rerun {run_id}",
    )
