"""Suites as the control side sees them: what they seek, and what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from headrace.errors import UnknownNameError, UserError
from headrace.files.atomic import is_there, read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.load import parse
from headrace.recipe.suite import MAX_TRIALS, Objective
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.states import StepState
from headrace.suites.analysis import PointResult, points
from headrace.suites.records import (
    FAILED,
    CommandsApplied,
    Control,
    Point,
    Trial,
)

_Content = TypeAdapter(dict[str, Any])
_LATER = ("retry", "add")
_LATER_LINES = tuple(f'{{"what":"{what}"'.encode() for what in _LATER)
_HEEDED = b'{"event":"heeded"'


def is_suite(record: RunRecord) -> bool:
    """Whether a run is a suite; of one whose folder is gone nobody knows."""
    return is_there(RunFolder(Path(record.folder)).source)


class Sought(NamedTuple):
    """What a suite is after."""

    objectives: tuple[Objective, ...] = ()
    """What it says, else what training monitors; may be nothing."""
    log_keys: tuple[str, ...] = ()
    """Keys that it samples on a logarithmic scale."""


def sought_by(folder: RunFolder) -> Sought:
    """What a suite is after.

    Raises:
        StepError: Its recipe is damaged.
    """
    from headrace.recipe.recipe import Recipe  # lists without suites make no classes of it

    recipe = read_record(folder.recipe, Recipe)
    if recipe is None:
        return Sought()
    search = recipe.suite.search if recipe.suite else None
    if search is None:
        return Sought(recipe.objectives)
    from headrace.suites.values import log_keys  # which brings OmegaConf

    return Sought(recipe.objectives, log_keys(search.space))


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
    control = parse(Control, told, f"What suite {record.run_id} is asked")
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
    further, num_trials = further_points(record, words, by)
    ask(record, "add", by=by, details=" ".join(words), points=further, priority=priority)
    return num_trials


def further_points(
    record: RunRecord, words: Sequence[str], by: Actor | None = None
) -> tuple[tuple[Point, ...], int]:
    """Points that words add to a suite, and how many trials they have; raises as `ask_for_more`."""
    from headrace.recipe.fit import opened
    from headrace.steps.context import resolved  # lists of runs do without these
    from headrace.suites.points import added_points

    folder = RunFolder(Path(record.folder))
    recipe, site = resolved(folder)
    if by is not None and by.through == AIRFLOW:
        site = site.model_copy(update={"roles": opened(site, is_from_terminal=False).roles})
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
    rows = open_ledger().trials_numbered(run_id, [each for each in numbers if each <= MAX_TRIALS])
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
