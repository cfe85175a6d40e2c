"""The page of a suite: how it stands, and all of its trials by columns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import JsonValue

from headrace.ledger.ledger import open_ledger
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import MAX_TRIALS, Objective
from headrace.record import Record
from headrace.runs.suites import SuiteView, find_suite, suite_view
from headrace.runs.trials import changed_since
from headrace.states import StepState
from headrace.suites.analysis import PointResult
from headrace.suites.records import PRUNED
from headrace.views.acts import ActRow, act_rows
from headrace.views.facts import facts_of
from headrace.views.logs import report_address
from headrace.views.runs import RunRow, run_rows

_MOST_CHANGED = 2000
"""With more changes all trials are sent."""
_MOST_LETTERS = 300


class BestTrial(Record):
    """The best trial of a suite with one objective."""

    number: int
    name: str
    value: float | None


class RunningRow(Record):
    """A trial that runs."""

    number: int
    name: str
    attempt: int
    node: str
    started_at: float
    progress: float
    """Share that is done, 0 to 1."""
    waits: str
    """What it waits for before it begins; empty when for nothing."""
    metrics: dict[str, float]


class SuitePage(Record):
    """How a suite stands; null is what is not known."""

    now: float
    run: RunRow
    paused: bool
    objectives: tuple[Objective, ...]
    log_keys: tuple[str, ...]
    """Keys that are sampled on a logarithmic scale, and drawn on one."""
    best: BestTrial | None
    point: PointResult | None
    """Of a cross-validation the best point, by the mean of its folds; no trial is best then."""
    eta_s: float | None
    eta_error_s: float | None
    """Half of the interval in which the end lies, with a probability of 0.8."""
    running: tuple[RunningRow, ...]
    """Not more than the first hundred."""
    damage: str
    """Why no more is known: a file that cannot be read; else empty."""
    report: str
    """Address of the report below that of the pages; empty without one."""
    acts: tuple[ActRow, ...]
    can_act: bool
    """Whether who asks may act on it."""


class TrialColumns(Record):
    """Trials, a value a trial in each column; times are seconds since the epoch."""

    number: tuple[int, ...]
    name: tuple[str, ...]
    state: tuple[str, ...]
    """A state, or `pruned`."""
    objective: tuple[float | None, ...]
    started_at: tuple[float | None, ...]
    finished_at: tuple[float | None, ...]
    attempts: tuple[int, ...]
    node: tuple[str, ...]
    usd: tuple[float | None, ...]
    why: tuple[str, ...]
    """The first line of why it failed."""
    values: dict[str, tuple[JsonValue, ...]]
    """What differs between trials, by dotted key."""
    metrics: dict[str, tuple[float | None, ...]]


class TrialsPage(Record):
    """The trials of a suite, or those that have changed."""

    version: int
    """How far the suite's journal is told; to be given as `since` the next time."""
    is_part: bool
    """Whether only those are here that have changed since then."""
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    columns: TrialColumns


def suite_page(run_id: str, *, can_act: bool) -> SuitePage:
    """How a suite stands now.

    Raises:
        UnknownNameError: There is no such run.
        UserError: It is no suite.
    """
    record = find_suite(run_id)
    view, (row,) = suite_view(record), run_rows([record])
    return SuitePage(
        now=time.time(),
        run=row,
        paused=view.paused,
        objectives=view.objectives,
        log_keys=facts_of(record).log_keys,
        best=_best(view),
        point=view.point,
        eta_s=view.eta_s,
        eta_error_s=view.eta_error_s,
        running=tuple(
            RunningRow(
                number=each.number,
                name=each.name,
                attempt=each.attempt,
                node=each.node,
                started_at=each.started_at,
                progress=each.done,
                waits=each.waits,
                metrics=each.metrics,
            )
            for each in view.running
        ),
        damage=view.damage,
        acts=act_rows(record.run_id),
        report=report_address(run_id),
        can_act=can_act,
    )


def trials_page(run_id: str, since: int = 0) -> TrialsPage:
    """All trials of a suite, or those that have changed since a version.

    Raises:
        UnknownNameError: There is no such run.
        UserError: It is no suite.
    """
    record = find_suite(run_id)
    ledger = open_ledger()
    version = ledger.journal_read(run_id)  # before the rows, which may tell more by then
    changed = changed_since(record, since, version) if 0 < since <= version else None
    if changed is None or len(changed) > _MOST_CHANGED:
        rows, changed = ledger.trials(run_id, limit=MAX_TRIALS), None
    else:
        rows = tuple(ledger.trials_numbered(run_id, changed).values())
    keys = tuple(dict.fromkeys(key for row in rows for key in row.values))
    metrics = tuple(dict.fromkeys(name for row in rows for name in row.metrics))
    return TrialsPage(
        version=version,
        is_part=changed is not None,
        keys=keys,
        metrics=metrics,
        columns=_columns(rows, keys, metrics),
    )


def _best(view: SuiteView) -> BestTrial | None:
    if view.best is None:
        return None
    return BestTrial(number=view.best, name=view.best_name, value=view.best_value)


def _columns(
    rows: Sequence[TrialRecord], keys: Sequence[str], metrics: Sequence[str]
) -> TrialColumns:
    return TrialColumns(
        number=tuple(row.number for row in rows),
        name=tuple(row.name for row in rows),
        state=tuple(_state(row) for row in rows),
        objective=tuple(row.objective for row in rows),
        started_at=tuple(row.started_at for row in rows),
        finished_at=tuple(row.finished_at for row in rows),
        attempts=tuple(row.attempts for row in rows),
        node=tuple(row.node for row in rows),
        usd=tuple(row.usd for row in rows),
        why=tuple(row.message.partition("\n")[0][:_MOST_LETTERS] for row in rows),
        values={key: tuple(row.values.get(key) for row in rows) for key in keys},
        metrics={name: tuple(row.metrics.get(name) for row in rows) for name in metrics},
    )


def _state(row: TrialRecord) -> str:
    return PRUNED if row.pruned and row.state is StepState.SUCCEEDED else row.state.value
