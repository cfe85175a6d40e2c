"""State of a step, by its attempts in the ledger and its files; and as a text.

The terminal, pages and Airflow's log all render a step by `in_words`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, JsonValue, computed_field

from headrace.errors import StepError
from headrace.files.layout import StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.record import Record
from headrace.runs.prediction import StepSeen
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepStatus
from headrace.steps.retry_policy import ERROR, PROGRESS, Attempt, num_failures

_RATE, _DATA_WAIT = "samples_per_s", "data_wait"
_MOST_METRICS = 4
_MUCH_WAIT = 0.1


class StepView(StepSeen):
    """State of one step of a run; null: unknown."""

    attempt: int = 0
    started_at: float | None = None
    """When its newest attempt began, seconds since the epoch."""
    finished_at: float | None = None
    message: str = ""
    """Why it failed; empty if it did not."""
    failure_class: FailureClass | None = None
    """Class of the failure; decides whether it was tried again."""
    error: str = ""
    """Name of the error's class; empty if unknown."""
    where: str = ""
    """Rank, worker or node it failed on, if known."""
    trace: str = ""
    """Trace of user code that raised, or of a fault of headrace."""
    folder: str = ""
    """The step's folder; empty before it is submitted."""
    outputs: dict[str, JsonValue] = {}
    restarts: tuple[str, ...] = ()
    """Why its processes were restarted within the newest attempt, each time."""
    damage: str = ""
    """Why more is unknown: a file of the step cannot be read; else empty."""
    last_failure: str = ""
    """Why the last of `failures` failed, in a line."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def progress(self) -> float | None:
        """Share that is done, 0 to 1."""
        if self.state is StepState.SUCCEEDED:
            return 1.0
        progress = self.status.progress if self.status else None
        return progress.done / progress.total if progress and progress.total else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def eta_s(self) -> float | None:
        """Seconds until its end, at its present rate."""
        return self.status.eta_s if self.status and self.state is StepState.RUNNING else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def words(self) -> str:
        """Its state in a line; if it failed, why."""
        if self.state is StepState.RUNNING and self.status is not None:
            return in_words(self.status)
        return self.message or self.damage


class FailedAttempt(Record):
    """The attempt by which a run ended without success."""

    model_config = ConfigDict(from_attributes=True)

    step: str
    attempt: int
    state: StepState
    failure_class: FailureClass | None
    message: str


class AttemptView(FailedAttempt):
    """An attempt at a step, and why it failed."""

    run_id: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    lease_id: str
    node: str = ""
    """Its first node; empty before its end."""


def in_words(status: StepStatus) -> str:
    """Return a state, as in `epoch 3/15 · val_loss 0.123 · 12,345 samples/s · 2 min left`."""
    progress, metrics = status.progress, dict(status.metrics)
    rate, wait = metrics.pop(_RATE, None), metrics.pop(_DATA_WAIT, 0.0)
    words = [progress.phase or status.state.value]
    words += figures(metrics)
    if rate is not None:
        words.append(f"{rate:,.0f} samples/s")
    elif status.rate:
        words.append(f"{status.rate:,.3g} {progress.unit}/s")
    words += [f"waits for data {_percent(wait)}"] if wait > _MUCH_WAIT else []
    if progress.done and "/" not in progress.phase:
        total = "" if progress.total is None else f"/{progress.total:,.0f}"
        words.append(f"{progress.done:,.0f}{total} {progress.unit}")
    words += [_percent(progress.done / progress.total)] if progress.total else []
    words += [] if status.eta_s is None else [_left(status.eta_s)]
    return " · ".join(words)


def figures(metrics: Mapping[str, Any]) -> list[str]:
    """Return the first few metrics that are single numbers: `val_loss 0.123`."""
    numbers = [(name, value) for name, value in metrics.items() if isinstance(value, int | float)]
    return [f"{name} {value:.4g}" for name, value in numbers[:_MOST_METRICS]]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s left"
    minutes = seconds / 60
    return f"{minutes:.0f} min left" if minutes < 90 else f"{minutes / 60:.1f} h left"


def step_views(
    attempts: Sequence[AttemptRecord], folders: Mapping[str, StepFolder], *, whole: bool = True
) -> tuple[StepView, ...]:
    """Return the steps that have begun, in the order in which their newest attempts were requested.

    Args:
        attempts: All of a run, in the order of their requests.
        folders: Folders of the submitted ones, by key.
        whole: Read files also of steps that have ended.
    """
    newest = {row.step: row for row in attempts}.values()
    return tuple(
        _step(row, attempts, folders if whole or not row.state.is_final else None) for row in newest
    )


def attempt_views(run_id: str, attempts: Sequence[AttemptRecord]) -> tuple[AttemptView, ...]:
    """Return attempts at the steps of a run, in the order of their requests."""
    run_id, _, trial = run_id.partition(":")
    used = open_ledger().usage(run_id, trial=int(trial or 0))
    own = (row for row in used if trial or row.run_id == run_id)  # parts have steps of that name
    nodes = {("train" if trial else row.step, row.attempt): row.node for row in own}
    views = map(AttemptView.model_validate, attempts)
    return tuple(
        view.model_copy(update={"node": nodes.get((view.step, view.attempt), "")}) for view in views
    )


def ended_of(row: AttemptRecord) -> Attempt:
    """Return an attempt of the ledger, as the retry policy takes it."""
    return Attempt(
        failure_class=row.failure_class,
        error=str(row.outputs.get(ERROR) or ""),
        message=row.message,
        kept=float(row.outputs.get(PROGRESS) or 0.0),
        machines=row.lease_id,
        seconds=row.took_s,
    )


def _step(
    row: AttemptRecord, attempts: Sequence[AttemptRecord], folders: Mapping[str, StepFolder] | None
) -> StepView:
    """Return a step by its newest attempt, all of its run and, given the folders, its files."""
    updates = {} if folders is None else _by_files(row, folders.get(row.key))
    if updates.get("state", row.state) is not StepState.SUCCEEDED:
        updates |= _failures(each for each in attempts if each.step == row.step)
    return StepView(
        name=row.step,
        state=row.state,
        attempt=row.attempt,
        started_at=row.started_at,
        finished_at=row.finished_at,
        elapsed_s=row.took_s,
    ).model_copy(update=updates)


def _by_files(row: AttemptRecord, folder: StepFolder | None) -> dict[str, object]:
    """Return what the files of an attempt add: fields of `StepView` by name."""
    status, result, damage = None, None, ""
    try:
        status = mailbox.status(folder) if folder else None
        result = mailbox.outcome(folder) if folder else None
    except StepError as error:  # the rest is in the ledger
        damage = error.what
    failure = result.failure if result else None
    found: dict[str, object] = {
        "status": status,
        "message": row.message or (failure.message if failure else ""),
        "failure_class": row.failure_class or (failure.failure_class if failure else None),
        "error": failure.error if failure else ended_of(row).error,
        "where": failure.where if failure else "",
        "trace": failure.trace if failure else "",
        "folder": str(folder.path) if folder else "",
        "outputs": dict(row.outputs or (result.outputs if result else {})),
        "restarts": status.restarts if status else (),
        "damage": damage,
    }
    if not damage and not row.state.is_final:
        last = result or status
        found["state"] = last.state if last else StepState.QUEUED
    if result is not None:
        found["elapsed_s"] = result.finished_at - result.started_at
    elif status is not None and row.took_s is None:
        found["elapsed_s"] = status.elapsed_s
        if row.started_at is None and found.get("state") is StepState.RUNNING:
            found["started_at"] = status.updated_at - status.elapsed_s
    return found


def _failures(attempts: Iterable[AttemptRecord]) -> dict[str, object]:
    """Return what failed attempts at a step add: fields of `StepView` by name."""
    failed = [
        row for row in attempts if row.state.is_final and row.state is not StepState.SUCCEEDED
    ]
    if not failed:
        return {}
    tried = [ended_of(row) for row in failed]
    return {
        "failures": num_failures(tried),
        "kept": max(each.kept for each in tried),
        "last_failure": failed[-1].message.partition("\n")[0],
    }
