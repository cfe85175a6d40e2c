"""Periodic work while a run waits; it tolerates an unreachable ledger."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from headrace.errors import LedgerError
from headrace.files.atomic import write_text
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.runs.names import named
from headrace.runs.owners import owner_is_gone
from headrace.runs.planning import ENFORCED_EVERY_S, note_prediction, planner
from headrace.runs.refresh_usage import refresh_usage
from headrace.runs.runs import Run
from headrace.states import StepState

logger = logging.getLogger(__name__)

Tick = Callable[[], None]

_LOOK_S = 2.0


def with_watch(run: Run, tick: Tick) -> Tick:
    """Return a tick that also forecasts a run once, counts its machines and keeps its budgets."""
    if run.request.watch:
        tick = _periodic(tick, _LOOK_S, partial(mark_enough, run))
    tick = _periodic(tick, math.inf, partial(note_prediction, run))
    return _periodic(tick, ENFORCED_EVERY_S, partial(_keep, run), first_s=ENFORCED_EVERY_S)


def _keep(run: Run) -> None:
    inform(run.folder, "accounting", partial(refresh_usage, run.run_id))
    planner().enforce(run)  # a budget is a limit and no information


def _periodic(tick: Tick, every_s: float, work: Tick, first_s: float = 0.0) -> Tick:
    """Return a tick that also does some work: after `first_s`, then every so many seconds."""
    due_s = time.monotonic() + first_s

    def both() -> None:
        nonlocal due_s
        tick()
        if time.monotonic() >= due_s:
            work()
            due_s = time.monotonic() + every_s

    return both


def tolerating_ledger_errors(tick: Tick) -> Tick:
    """Return a tick that tolerates an unreachable ledger; what must be entered fails loudly."""
    lost = False

    def one() -> None:
        nonlocal lost
        try:
            tick()
        except LedgerError as error:
            if not lost:
                logger.warning("The run goes on, but nothing is counted now: %s", error.what)
            lost = True
        else:
            lost = False

    return one


def mark_enough(run: Run) -> None:
    """Leave or remove the mark that no more checkpoints come: a run may be resumed."""
    found = named(run.request.of)
    trained = open_ledger().latest_attempt(found.name, "train")
    has_trained = trained is not None and trained.state is StepState.SUCCEEDED
    has_ended = (found.trial or found.record).state.is_final
    if has_trained or has_ended or owner_is_gone(found.record.owner):
        write_text(run.folder.enough, found.name)
    else:
        run.folder.enough.unlink(missing_ok=True)
