"""Actions of users on runs, suites and leases from the pages."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException
from pydantic import Field

from headrace.errors import UserError
from headrace.execution.reap import ask_to_stop, close_lease
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import Marks
from headrace.recipe.base import Parallel
from headrace.recipe.suite import MAX_TRIALS
from headrace.recipe.untrusted_overrides import check_from_outside
from headrace.record import Record
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.runs.runs import open_run
from headrace.runs.suites import ask, ask_for_more, further_points
from headrace.status.run_list import mark_runs
from headrace.status.suite import find_suite
from headrace.suites import values as sweep_values
from headrace_pages.access import User, acts, check_acts_on

router = APIRouter(prefix="/act", dependencies=[acts])

_GRACE_S = 20.0

TrialNumber = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
"""Number of a trial in its suite."""


class ById(Record):
    """A run or a lease, by its id."""

    id: str = Field(max_length=500)


class SuiteAct(ById):
    """An action on a suite, on some of its trials, or on one of its sites."""

    what: Literal[
        "pause", "resume", "cancel", "retry", "pause-site", "resume-site", "limit-site",
        "leave-site",
    ]  # fmt: skip
    trials: tuple[TrialNumber, ...] = Field(default=(), max_length=MAX_TRIALS)
    """Their numbers; empty: all."""
    site: str = Field(default="", max_length=500)
    """Name of the site of an action with `-site`."""
    limit: Parallel | None = None
    """Most trials at once for `limit-site`; null: no limit."""


class MoreTrials(ById):
    """Trials to add to a suite."""

    words: str = Field(max_length=20_000)
    """Differences from its recipe, as in `model.lr=0.1,0.2 seed=3`; quoted as in a shell."""
    priority: int | None = None
    """Greater ones start first; null: the suite's."""
    preview: bool = False
    """Whether only to count them."""


class MarkAct(Marks):
    """Changes of the tags, notes and stars of runs."""

    ids: tuple[Annotated[str, Field(max_length=500)], ...] = Field(min_length=1, max_length=200)


class Done(Record):
    """The request that was made."""

    done: str
    """As a text for the user."""


@router.post("/cancel")
def cancel(named: ById, user: User) -> Done:
    """Ask the running steps of a run to stop."""
    by = _checked(user, open_ledger().run(named.id), "cancel")
    asked = ask_to_stop(open_run(named.id), by)
    return Done(done=f"Asked to stop: {', '.join(asked)}" if asked else "The run is cancelled")


@router.post("/mark")
def mark(act: MarkAct, user: User) -> Done:
    """Tag, note or star runs."""
    for run_id in act.ids:
        by = _checked(user, open_ledger().run(run_id), "mark")
    mark_runs(act.ids, act, by)
    return Done(done=f"Marked {len(act.ids)} {'run' if len(act.ids) == 1 else 'runs'}")


@router.post("/suite")
def suite(act: SuiteAct, user: User) -> Done:
    """Pause or continue a suite, cancel or retry trials."""
    record = find_suite(act.id)
    of_site: dict[str, Any] = {}
    if act.what.endswith("-site"):
        of_site = {"site": act.site, "limit": act.limit}
    ask(record, act.what, act.trials, by=_checked(user, record, act.what), **of_site)
    which = f" of trials {', '.join(map(str, act.trials))}" if act.trials else ""
    which = f" {act.site}" if of_site else which
    return Done(done=f"Requested: {act.what}{which}{_when(record)}")


@router.post("/suite/add")
def add(act: MoreTrials, user: User) -> Done:
    """Add trials to a suite, or only count them."""
    record = find_suite(act.id)
    by = _checked(user, record, "add")
    words = _split(act.words)
    if act.preview:
        return Done(done=f"{_counted(further_points(record, words, by)[1])} would be added")
    count = ask_for_more(record, words, act.priority, by)
    return Done(done=f"Asked to add {_counted(count)}{_when(record)}")


@router.post("/lease")
def lease(named: ById, user: User) -> Done:
    """Close a lease; its running steps end."""
    row = open_ledger().lease(named.id)
    by = _checked(user, open_ledger().run(row.run_id), "close")
    if not row.state.is_active:
        what = f"Lease {row.lease_id} is already {row.state.value}: {row.why_ended}"
        raise UserError(what, "There is nothing to close.")
    close_lease(LeaseFolder(Path(row.folder)), by, _GRACE_S)
    return Done(done=f"Lease {row.lease_id} is closed")


def _checked(user: User, record: RunRecord, what: str) -> Actor:
    """Return the user as an actor; raise if the user may not act on a run."""
    by = Actor(user.get_name(), AIRFLOW)
    try:
        check_acts_on(user, record)
    except HTTPException as error:
        detail: object = error.detail
        why = str(detail["what"] if isinstance(detail, dict) else detail)
        note(by, what, record.run_id, refused=why)
        raise
    return by


def _split(words: str) -> list[str]:
    try:
        found = shlex.split(words)
    except ValueError as error:
        hint = "Each quotation mark needs a second one."
        raise UserError(f"The values cannot be read: {error}", hint) from error
    if not found:
        raise UserError("The values are missing", "Write them as in model.lr=0.1,0.2 seed=3.")
    overrides, update = sweep_values.parse(found)
    check_from_outside((*overrides, *sweep_values.as_overrides(update)))
    return found


def _counted(count: int) -> str:
    return f"{count:,} {'trial' if count == 1 else 'trials'}"


def _when(record: RunRecord) -> str:
    """Return the next step for a suite that has ended."""
    return f"; it has ended: headrace resume {record.run_id}" if record.state.is_final else ""
