"""Ticks that do some work now and then, and go without a ledger that cannot be asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.errors import LedgerError
from headrace.files.atomic import write_text
from headrace.ledger.ledger import open_ledger
from headrace.runs.owners import owner_is_gone
from headrace.runs.runs import Run
from headrace.states import StepState

logger = logging.getLogger(__name__)

_LOOK_S = 2.0


def minded(run: Run, tick: Callable[[], None]) -> Callable[[], None]:
    """The tick of a run, which looks now and then after the training that the run watches."""
    return (
        now_and_then(tick, _LOOK_S, lambda: tell(run), first_s=0.0) if run.request.watch else tick
    )


def now_and_then(
    tick: Callable[[], None],
    every_s: float,
    work: Callable[[], None],
    first_s: float | None = None,
) -> Callable[[], None]:
    """A tick that also does some work each time when so many seconds have passed."""
    due_s = time.monotonic() + (every_s if first_s is None else first_s)

    def both() -> None:
        nonlocal due_s
        tick()
        if time.monotonic() >= due_s:
            work()
            due_s = time.monotonic() + every_s

    return both


def forgiving(tick: Callable[[], None]) -> Callable[[], None]:
    """A tick that does without a ledger that cannot be asked; what must be entered fails loudly."""
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


def tell(run: Run) -> None:
    """Leave or take away the mark that no more checkpoints come: a run may be resumed."""
    watched = open_ledger().run(run.request.of)
    trained = open_ledger().latest_attempt(watched.run_id, "train")
    has_trained = trained is not None and trained.state is StepState.SUCCEEDED
    if has_trained or watched.state.is_final or owner_is_gone(watched.owner):
        write_text(run.folder.enough, watched.run_id)
    else:
        run.folder.enough.unlink(missing_ok=True)
