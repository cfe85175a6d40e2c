"""Suites on the control side: their objectives, and commands to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from headrace.errors import UnknownNameError, UserError, nearest
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.load import parse
from headrace.recipe.suite import MAX_TRIALS, Objective
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.runs.on_disk import check_there
from headrace.states import StepState
from headrace.suites.analysis import PointResult, points
from headrace.suites.records import FAILED, CommandsApplied, Control, Point, Trial

_Content = TypeAdapter(dict[str, Any])
_LATER = ("retry", "add", "assign")
_STEPS = ("suite", "sites")
_LATER_LINES = tuple(f'{{"what":"{what}"'.encode() for what in _LATER)
_APPLIED = b'{"event":"heeded"'


def is_suite(record: RunRecord) -> bool:
    """Whether a run is a suite."""
    return record.kind == "suite"


class Sought(NamedTuple):
    """Objectives of a suite."""

    objectives: tuple[Objective, ...] = ()
    """Those of the suite, else the monitored metric; may be empty."""
    log_keys: tuple[str, ...] = ()
    """Keys that it samples on a logarithmic scale."""


def sought_by(folder: RunFolder) -> Sought:
    """Return the objectives of a suite.

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
    """Return the point whose trials have the best mean; None before a trial has a value."""
    found = points(open_ledger().trials(run_id, limit=MAX_TRIALS), objectives, 1)
    return found[0] if found and found[0].spread else None


def ask(
    record: RunRecord,
    what: str,
    numbers: Sequence[int] = (),
    by: Actor | None = None,
    details: str = "",
    **more: Any,
) -> None:
    """Send a command to a suite; its driver, or the next one, applies it within seconds.

    A suite that has ended takes only commands for more trials, and unless it has succeeded for its
    sites: `headrace resume` applies them.

    Args:
        record: The suite.
        what: As in `Control`.
        numbers: Trials of the command; empty for all.
        by: The requester; by default the account of this terminal.
        details: Further text for the audit.
        more: Further fields of `Control`.

    Raises:
        UserError: The suite has ended or was removed, or has only one site, or the command does not
            apply to a trial.
        UnknownNameError: A trial or the site does not exist.
    """
    is_of_site = what.endswith("-site")
    is_later = what in _LATER or (is_of_site and record.state is not StepState.SUCCEEDED)
    if record.state.is_final and not is_later:
        raise UserError(
            f"Suite {record.run_id} has ended already: {record.state.value}",
            f"Look at it: headrace suite show {record.run_id}. Go on with one that has not "
            f"succeeded: headrace resume {record.run_id}.",
        )
    check_there(record)
    if numbers:
        _check(record.run_id, what, numbers)
    if is_of_site:
        details = _check_site(record, **more)
    by = by or Actor.here()
    content = {"what": what, "by": str(by), "numbers": tuple(numbers), **more}
    control = parse(Control, content, f"The command for suite {record.run_id}")
    append_line(RunFolder(Path(record.folder)).controls, control.model_dump_json())
    which = f"trials {', '.join(map(str, numbers))}" if numbers else ""
    note(by, what, record.run_id, details or which)


def ask_for_more(
    record: RunRecord, words: Sequence[str], priority: float | None = None, by: Actor | None = None
) -> int:
    """Add trials to a suite, by words as for `headrace sweep`; return how many.

    Raises:
        UserError: They cannot be used, or the trial exists already.
        StepError: The suite's recipe is gone.
    """
    further, num_trials = further_points(record, words, by)
    ask(record, "add", by=by, details=" ".join(words), points=further, priority=priority)
    return num_trials


def further_points(
    record: RunRecord, words: Sequence[str], by: Actor | None = None
) -> tuple[tuple[Point, ...], int]:
    """Return the points that words add to a suite, and how many trials; see `ask_for_more`."""
    from headrace.recipe.fence import opened
    from headrace.recipe.untrusted_overrides import check_figures
    from headrace.steps.context import resolved  # lists of runs do without these
    from headrace.suites.points import added_points

    folder = RunFolder(Path(record.folder))
    recipe, site = resolved(folder)
    is_from_outside = by is not None and by.through == AIRFLOW
    if is_from_outside:
        site = site.model_copy(update={"roles": opened(site, is_from_terminal=False).roles})
    rows = open_ledger().trials(record.run_id, limit=MAX_TRIALS)
    known = (
        Trial(number=row.number, name=row.name, values=row.values, group=row.group) for row in rows
    )
    source = _Content.validate_json(folder.source.read_bytes())
    further, num_trials = added_points(recipe, source, site, known, words)
    if is_from_outside and not site.is_fenced:
        check_figures(further, [row.values for row in rows])
    return further, num_trials


def has_more_to_do(run: RunFolder, step_kind: str = "suite") -> bool:
    """Whether a suite step succeeded before it applied all commands for further trials."""
    asked = (read_bytes(run.controls) or b"").splitlines() if step_kind in _STEPS else []
    if not asked:
        return False
    applied = 0
    for line in (read_bytes(run.journal) or b"").splitlines():
        if line.startswith(_APPLIED):
            applied = max(applied, CommandsApplied.model_validate_json(line).lines)
    return any(line.startswith(_LATER_LINES) for line in asked[applied:])


def _check_site(record: RunRecord, site: str = "", limit: int | None = None) -> str:
    """Return the site and its limit for the audit; raise unless the suite has several sites."""
    from headrace.recipe.recipe import Recipe  # as above

    recipe = read_record(RunFolder(Path(record.folder)).recipe, Recipe)
    names = recipe.suite.sites if recipe and recipe.suite else ()
    if not names:
        raise UserError(
            f"Suite {record.run_id} has only one site: {record.site_name}",
            "Commands for a site are for suites over several: headrace sweep --site a,b.",
        )
    if site not in names:
        raise UnknownNameError(f"Suite {record.run_id} has no site '{site}'", nearest(site, names))
    return site if limit is None else f"{site}: at most {limit}"


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
