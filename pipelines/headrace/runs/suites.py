"""Suites as the control side sees them: which there are, how they stand, what is asked of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from headrace.errors import StepError, UnknownNameError, UserError
from headrace.files.atomic import is_there, read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import MAX_TRIALS, Objective
from headrace.record import Figures
from headrace.runs.audit import Actor, note
from headrace.runs.costs import Cost, run_cost
from headrace.runs.provenance import owner_is_gone
from headrace.runs.trials import note_trials
from headrace.states import StepState
from headrace.steps.context import resolved
from headrace.suites.analysis import PointResult, points
from headrace.suites.points import added_points
from headrace.suites.records import (
    FAILED,
    FOLD,
    PRUNED,
    CommandsApplied,
    Control,
    Point,
    RunningTrial,
    SuiteSummary,
    Trial,
)
from headrace.suites.values import log_keys

_Content = TypeAdapter(dict[str, Any])
_LATER = ("retry", "add")
_LATER_LINES = tuple(f'{{"what":"{what}"'.encode() for what in _LATER)
_HEEDED = b'{"event":"heeded"'
_MOST_RUNS = 10_000
_MOST_NAMED = 10


class SuiteView(Figures):
    """How a suite stands."""

    run_id: str
    recipe: str
    site: str
    state: StepState
    owner_is_gone: bool
    """Whether nobody goes on with it: its process, on this machine, has ended before the suite."""
    elapsed_s: float
    total: int
    """Trials so far; with a sampler also those that it will propose."""
    counts: dict[str, int]
    """Trials by state; `pruned` is one."""
    paused: bool = False
    objectives: tuple[Objective, ...] = ()
    best: int | None = None
    """Number of the best trial; null without one objective, or an ended trial."""
    best_name: str = ""
    best_value: float | None = None
    point: PointResult | None = None
    """Of a cross-validation the best point, by the mean of its folds; no trial is best then."""
    eta_s: float | None = None
    """Seconds until its end, as far as is known."""
    eta_error_s: float | None = None
    """Half of the interval in which the end lies, with a probability of 0.8."""
    running: tuple[RunningTrial, ...] = ()
    cost: Cost | None = None
    """What its machines have cost so far; null where nobody counts them."""
    damage: str = ""
    """Why no more is known: a file of the suite cannot be read; else empty."""


def suites(limit: int) -> Iterator[RunRecord]:
    """At most so many suites, the newest first."""
    found = (row for row in open_ledger().runs(limit=_MOST_RUNS) if is_suite(row))
    for row, _ in zip(found, range(limit), strict=False):
        yield row


def is_suite(record: RunRecord) -> bool:
    """Whether a run is a suite; of one whose folder is gone nobody knows."""
    return is_there(RunFolder(Path(record.folder)).source)


def find_suite(run_id: str | None) -> RunRecord:
    """The suite with an id, or the newest one; its trials are noted in the ledger.

    Raises:
        UnknownNameError: There is none, or no such run.
        UserError: That run is no suite.
    """
    record = next(suites(1), None) if run_id is None else open_ledger().run(run_id)
    if record is None:
        raise UnknownNameError("There are no suites yet", "Start one: headrace sweep --help.")
    if not is_suite(record):
        raise UserError(f"Run {record.run_id} is no suite", "List suites: headrace suite list.")
    note_trials(RunFolder(Path(record.folder)))
    return record


def only_suite() -> RunRecord:
    """The suite that is meant where none is named: the only one that goes on, or that there is.

    Raises:
        UnknownNameError: There is none.
        UserError: There are several.
    """
    found = tuple(suites(_MOST_NAMED))
    meant = [row for row in found if not row.state.is_final] or found
    if len(meant) > 1:
        named = ", ".join(row.run_id for row in meant)
        raise UserError(f"Several suites may be meant: {named}", "Name one of them.")
    return find_suite(meant[0].run_id if meant else None)


def suite_view(record: RunRecord) -> SuiteView:
    """How a suite stands now, as far as its files can be read."""
    folder = RunFolder(Path(record.folder))
    note_trials(folder)
    summary, damage = SuiteSummary(total=0), ""
    try:
        summary = read_record(folder.summary, SuiteSummary) or summary
    except StepError as error:
        damage = error.what
    objectives = objectives_of(folder)
    best, point = best_trial(record.run_id, objectives), None
    if best is not None and FOLD in best.values:
        best, point = None, best_point(record.run_id, objectives)
    counts = _counts(record.run_id, summary)
    goes_on = not record.state.is_final
    return SuiteView(
        run_id=record.run_id,
        recipe=record.recipe_name,
        site=record.site_name,
        state=record.state,
        owner_is_gone=goes_on and owner_is_gone(record.owner),
        elapsed_s=(record.finished_at or time.time()) - record.created_at,
        total=max(summary.total, sum(counts.values())),
        counts=counts,
        paused=summary.paused and goes_on,
        objectives=objectives,
        best=best.number if best else None,
        best_name=best.name if best else "",
        best_value=best.objective if best else None,
        point=point,
        eta_s=summary.eta_s if goes_on else None,
        eta_error_s=summary.eta_error_s if goes_on else None,
        running=summary.running if goes_on else (),
        cost=run_cost(record.run_id),
        damage=damage,
    )


def objectives_of(folder: RunFolder) -> tuple[Objective, ...]:
    """What a suite seeks: what it says, else what training monitors; may be nothing.

    Raises:
        StepError: Its recipe is damaged.
    """
    recipe = read_record(folder.recipe, Recipe)
    return () if recipe is None else recipe.objectives


def log_keys_of(folder: RunFolder) -> tuple[str, ...]:
    """Keys that a suite samples on a logarithmic scale.

    Raises:
        StepError: Its recipe is damaged.
    """
    recipe = read_record(folder.recipe, Recipe)
    search = recipe.suite.search if recipe and recipe.suite else None
    return log_keys(search.space) if search else ()


def best_trial(run_id: str, objectives: Sequence[Objective]) -> TrialRecord | None:
    """The best trial that went to its end; None without one objective, or without such a trial."""
    if len(objectives) != 1:
        return None
    order = "objective" if objectives[0].mode == "min" else "-objective"
    rows = open_ledger().trials(run_id, state=StepState.SUCCEEDED, order=order)
    return next((row for row in rows if not row.pruned and row.objective is not None), None)


def best_point(run_id: str, objectives: Sequence[Objective]) -> PointResult | None:
    """The point whose trials have the best mean; None before one of them has a value."""
    found = points(open_ledger().trials(run_id, limit=MAX_TRIALS), objectives)
    return found[0] if found and found[0].spread else None


def ask(
    record: RunRecord,
    what: str,
    numbers: Sequence[int] = (),
    by: Actor | None = None,
    details: str = "",
    **more: Any,
) -> None:
    """Ask something of a suite; its driver, or the next one, heeds it within seconds.

    Of one that has ended only more trials can be asked: `headrace resume` runs them.

    Args:
        record: The suite.
        what: As in `Control`.
        numbers: Trials that are meant; empty for all.
        by: Who asks; by default who is at this terminal.
        details: What the audit tells besides.
        more: Further fields of `Control`.

    Raises:
        UserError: The suite has ended, or a trial cannot be asked that.
        UnknownNameError: There is no trial with one of the numbers.
    """
    if record.state.is_final and what not in _LATER:
        raise UserError(
            f"Suite {record.run_id} has ended already: {record.state.value}",
            f"Look at it: headrace suite show {record.run_id}. Go on with one that has not "
            f"succeeded: headrace resume {record.run_id}.",
        )
    if numbers:
        _check(record.run_id, what, numbers)
    by = by or Actor.here()
    told = {"what": what, "by": str(by), "numbers": tuple(numbers), **more}
    control = Control.model_validate(told)
    append_line(RunFolder(Path(record.folder)).controls, control.model_dump_json())
    which = f"trials {', '.join(map(str, numbers))}" if numbers else ""
    note(by, what, record.run_id, details or which)


def ask_for_more(
    record: RunRecord,
    words: Sequence[str],
    priority: float | None = None,
    by: Actor | None = None,
) -> int:
    """Ask a suite for further trials, in words as for `headrace sweep`; gives how many.

    Raises:
        UserError: They cannot be used, or it has such a trial.
        StepError: The suite's recipe is gone.
    """
    further, num_trials = further_points(record, words)
    ask(record, "add", by=by, details=" ".join(words), points=further, priority=priority)
    return num_trials


def further_points(record: RunRecord, words: Sequence[str]) -> tuple[tuple[Point, ...], int]:
    """Points that words add to a suite, and how many trials they have; raises as `ask_for_more`."""
    folder = RunFolder(Path(record.folder))
    recipe, site = resolved(folder)
    rows = open_ledger().trials(record.run_id, limit=MAX_TRIALS)
    known = (
        Trial(number=row.number, name=row.name, values=row.values, group=row.group) for row in rows
    )
    source = _Content.validate_json(folder.source.read_bytes())
    return added_points(recipe, source, site, known, words)


def has_more_to_do(run: RunFolder, step_kind: str = "suite") -> bool:
    """Whether a suite step has succeeded before it heeded all trials that it was asked for."""
    asked = (read_bytes(run.controls) or b"").splitlines() if step_kind == "suite" else []
    if not asked:
        return False
    heeded = 0
    for line in (read_bytes(run.journal) or b"").splitlines():
        if line.startswith(_HEEDED):
            heeded = max(heeded, CommandsApplied.model_validate_json(line).lines)
    return any(line.startswith(_LATER_LINES) for line in asked[heeded:])


def _check(run_id: str, what: str, numbers: Sequence[int]) -> None:
    rows = open_ledger().trials_numbered(run_id, numbers)
    if unknown := [str(each) for each in numbers if each not in rows]:
        raise UnknownNameError(
            f"Suite {run_id} has no trial {', '.join(unknown)}",
            f"List its trials: headrace suite show {run_id}.",
        )
    for row in rows.values():
        if what in ("cancel", "prioritize") and row.state.is_final:
            raise UserError(f"Trial {row.number} has ended already: {row.state.value}")
        if what == "retry" and row.state not in (*FAILED, StepState.CANCELLED):
            raise UserError(
                f"Trial {row.number} is {row.state.value}, not failed",
                f"List failed ones: headrace suite show {run_id} --state failed.",
            )


def _counts(run_id: str, summary: SuiteSummary) -> dict[str, int]:
    counts = {state.value: count for state, count in open_ledger().count_trials(run_id).items()}
    done = StepState.SUCCEEDED.value
    pruned = min(summary.counts.get(PRUNED, 0), counts.get(done, 0))
    if pruned:
        counts |= {PRUNED: pruned, done: counts[done] - pruned}
    return {state: count for state, count in counts.items() if count}
