"""State of suites, and all trials of one suite by columns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from headrace.errors import UnknownNameError, UserError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import RunFilter
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import MAX_TRIALS, Objective
from headrace.record import Record
from headrace.runs.suites import best_point, is_suite
from headrace.runs.trials import changed_since, note_trials
from headrace.states import StepState
from headrace.status.logs import report_address
from headrace.status.run import RunRows, RunView, Trials, by_ledger, summary_of
from headrace.status.run_list import ActView, acts_of
from headrace.status.traits import traits_of
from headrace.suites.analysis import PointResult, points
from headrace.suites.records import FOLD, PRUNED, RunningTrial, SuiteSummary

_MOST_CHANGED = 2000
"""With more changes all trials are sent."""
_MOST_LETTERS = 300
_MOST_POINTS = 20
_OF_ROWS = (
    *("number", "name", "objective", "started_at", "finished_at", "attempts", "site", "node"),
    *("usd", "energy_wh"),
)


class SuiteView(RunView):
    """State of a suite; its objective's best value is `metric`, its trials by state `trials`."""

    trials: Trials
    objectives: tuple[Objective, ...] = ()
    log_keys: tuple[str, ...] = ()
    """Keys that are sampled, and drawn, on a logarithmic scale."""
    best: int | None = None
    """Number of the best trial; null without a single objective or an ended trial."""
    best_name: str = ""
    best_value: float | None = None
    point: PointResult | None = None
    """The best point of a cross-validation, by the mean of its folds; then no trial is best."""
    eta_error_s: float | None = None
    """Half of the 80 % interval of the end, in seconds."""
    running: tuple[RunningTrial, ...] = ()
    """At most the first hundred."""


class SuitePage(SuiteView):
    """All data of a suite's page except its trials."""

    now: float
    report: str
    """The report's address, relative to the pages' address; empty without a report."""
    acts: tuple[ActView, ...]
    points: tuple[PointResult, ...]
    """The best points, if some have several seeds or folds; else empty."""
    can_act: bool
    """Whether this user may act on it."""


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
    site: tuple[str, ...]
    """Site of the newest attempt, or that it waits for; empty: that of the suite."""
    node: tuple[str, ...]
    usd: tuple[float | None, ...]
    energy_wh: tuple[float | None, ...]
    """Watt-hours; null: not measured."""
    why: tuple[str, ...]
    """The first line of why it failed."""
    values: dict[str, tuple[JsonValue, ...]]
    """What differs between trials, by dotted key."""
    metrics: dict[str, tuple[float | None, ...]]


class TrialsPage(Record):
    """The trials of a suite, or those that have changed."""

    version: int
    """Version of these trials, to be passed as `since` the next time."""
    is_part: bool
    """Whether these are only the trials that have changed since then."""
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    columns: TrialColumns


def find_suite(run_id: str | None, among: int = 1) -> RunRecord:
    """Return a suite; its trials are entered in the ledger.

    Args:
        run_id: Its id; None for the newest one.
        among: Without an id, of so many of the newest the only running one, or the only one.

    Raises:
        UnknownNameError: No suite exists, or no run has that id.
        UserError: The run is not a suite, or there are several.
    """
    newest = RunFilter(kind=("suite",), limit=among)
    found = (open_ledger().run(run_id),) if run_id else open_ledger().find_runs(newest)
    meant = [row for row in found if not row.state.is_final] or found
    if not meant:
        raise UnknownNameError("There are no suites yet", "Start one: headrace sweep --help.")
    if len(meant) > 1:
        named = ", ".join(row.run_id for row in meant)
        raise UserError(f"There are several suites: {named}", "Name one of them.")
    record = meant[0]
    if not is_suite(record):
        hint = "List suites: headrace runs --kind suite"
        raise UserError(f"Run {record.run_id} is not a suite", hint)
    note_trials(RunFolder(Path(record.folder)))
    return record


def suite_views(records: Sequence[RunRecord]) -> tuple[SuiteView, ...]:
    """Return the current state of suites, as far as files can be read; enter their trials."""
    for record in records:
        note_trials(RunFolder(Path(record.folder)))
    return tuple(map(_view, RunRows.of(records)))


def suite_page(run_id: str, *, can_act: bool) -> SuitePage:
    """Return all current data of a suite except its trials.

    Raises:
        UnknownNameError: No run has that id.
        UserError: The run is not a suite.
    """
    (rows,) = RunRows.of([find_suite(run_id)])
    view, read_bytes = _view(rows), open_ledger().journal_read(run_id)
    return SuitePage(
        **dict(view),
        now=time.time(),
        acts=acts_of(run_id),
        points=_points(run_id, read_bytes, view.objectives)
        if traits_of(rows.run.folder).repeats
        else (),
        report=report_address(rows),
        can_act=can_act,
    )


@lru_cache(maxsize=20)
def _points(run_id: str, _read_bytes: int, by: tuple[Objective, ...]) -> tuple[PointResult, ...]:
    return points(open_ledger().trials(run_id, limit=MAX_TRIALS), by, _MOST_POINTS)


def trials_page(run_id: str, since: int = 0) -> TrialsPage:
    """Return all trials of a suite, or those that have changed since a version.

    Raises:
        UnknownNameError: No run has that id.
        UserError: The run is not a suite.
    """
    record = find_suite(run_id)
    ledger = open_ledger()
    version = ledger.journal_read(run_id)  # before the rows: these may be newer
    is_part = 0 < since <= version and not record.state.is_final  # its end changes trials, too
    changed = changed_since(record, since, version) if is_part else None
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
        columns=TrialColumns(
            **{name: tuple(getattr(row, name) for row in rows) for name in _OF_ROWS},
            state=tuple(state_of(row) for row in rows),
            why=tuple(row.message.partition("\n")[0][:_MOST_LETTERS] for row in rows),
            values={key: tuple(_in_json(row.values.get(key)) for row in rows) for key in keys},
            metrics={name: tuple(row.metrics.get(name) for row in rows) for name in metrics},
        ),
    )


def _in_json(value: JsonValue) -> JsonValue:
    """Return a value as JSON has it; infinite ones and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def state_of(row: TrialRecord) -> str:
    """Return the state of a trial; `pruned` is a state here."""
    return PRUNED if row.pruned and row.state is StepState.SUCCEEDED else row.state.value


def _view(rows: RunRows) -> SuiteView:
    record = rows.run
    summary = summary_of(record)[0] or SuiteSummary(total=0)
    traits, goes_on = traits_of(record.folder), not record.state.is_final
    modes, point = [each.mode for each in traits.objectives], None
    best = open_ledger().best_trial(record.run_id, *modes)
    if best is not None and FOLD in best.values:
        best, point = None, best_point(record.run_id, traits.objectives)
    number = best.number if best else None
    updates = {
        "trials": Trials.of(summary.total, _counts(rows.trials, summary), number),
        "eta_s": summary.eta_s if goes_on else None,
    }
    return SuiteView(
        **{**dict(by_ledger(rows, time.time())), **updates},
        objectives=traits.objectives,
        log_keys=traits.log_keys,
        best=number,
        best_name=best.name if best else "",
        best_value=best.objective if best else None,
        point=point,
        eta_error_s=summary.eta_error_s if goes_on else None,
        running=summary.running if goes_on else (),
    )


def _counts(entered: Mapping[StepState, int], summary: SuiteSummary) -> dict[str, int]:
    """Return trials by state, as the ledger has them; `pruned` is a state here."""
    counts = {state.value: count for state, count in entered.items()}
    done = StepState.SUCCEEDED.value
    pruned = min(summary.counts.get(PRUNED, 0), counts.get(done, 0))
    return counts | {PRUNED: pruned, done: counts[done] - pruned} if pruned else counts
