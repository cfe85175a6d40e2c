"""The steps of a run, and the attempts at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.record import Record
from headrace.runs.overview import StepView
from headrace.states import FailureClass, StepState


class StepRow(Record):
    """How a step of the run stands; null is what is not known."""

    name: str
    state: StepState | None
    """Null: not yet begun."""
    attempt: int
    progress: float | None
    """Share that is done, 0 to 1."""
    unit: str
    rate: float | None
    """Units a second."""
    eta_s: float | None
    elapsed_s: float | None
    message: str
    started_at: float | None
    finished_at: float | None
    where: str
    """Rank, worker or node that it failed on."""


class AttemptRow(Record):
    """An attempt at a step, and why it failed."""

    step: str
    attempt: int
    state: StepState
    failure_class: FailureClass | None
    message: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    lease_id: str
    node: str
    """Its first node; empty until it has ended."""


def share_of(step: StepView) -> float | None:
    """Share of a step that is done, 0 to 1; None where nobody knows."""
    if step.state is StepState.SUCCEEDED:
        return 1.0
    progress = step.status.progress if step.status else None
    return progress.done / progress.total if progress and progress.total else None


def step_rows(steps: Sequence[StepView], attempts: Sequence[AttemptRecord]) -> Iterator[StepRow]:
    """The steps of a run, with what the newest attempt at each tells."""
    newest = {each.step: each for each in attempts}
    for step in steps:
        row, status = newest.get(step.name), step.status
        began_at = row.started_at if row else None
        if began_at is None and status is not None and step.state is StepState.RUNNING:
            began_at = status.updated_at - status.elapsed_s
        goes_on = status if step.state is StepState.RUNNING else None
        yield StepRow(
            name=step.name,
            state=step.state,
            attempt=step.attempt,
            progress=share_of(step),
            unit=status.progress.unit if status else "",
            rate=goes_on.rate if goes_on else None,
            eta_s=goes_on.eta_s if goes_on else None,
            elapsed_s=step.elapsed_s,
            message=step.message or step.damage or (status.progress.phase if status else ""),
            started_at=began_at,
            finished_at=row.finished_at if row else None,
            where=step.where,
        )


def attempt_rows(run_id: str, attempts: Sequence[AttemptRecord]) -> Iterator[AttemptRow]:
    """Attempts at the steps of a run, as they were asked for."""
    used = open_ledger().usage(run_id, trial=0)
    nodes = {(row.step, row.attempt): row.node for row in used}
    for row in attempts:
        yield AttemptRow(
            step=row.step,
            attempt=row.attempt,
            state=row.state,
            failure_class=row.failure_class,
            message=row.message,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            lease_id=row.lease_id,
            node=nodes.get((row.step, row.attempt), ""),
        )
