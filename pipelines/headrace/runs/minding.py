"""Tells an evaluation that watches a run when that run trains no more."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.files.atomic import write_text
from headrace.ledger.ledger import open_ledger
from headrace.runs.provenance import owner_is_gone
from headrace.runs.runs import Run
from headrace.states import StepState

_LOOK_S = 2.0


def minded(run: Run, tick: Callable[[], None]) -> Callable[[], None]:
    """The tick of a run, which looks now and then after the training that the run watches."""
    if not run.request.watch:
        return tick
    looked_s = 0.0

    def look_and_tick() -> None:
        nonlocal looked_s
        tick()
        if time.monotonic() - looked_s >= _LOOK_S:
            tell(run)
            looked_s = time.monotonic()

    return look_and_tick


def tell(run: Run) -> None:
    """Leave or take away the mark that no more checkpoints come: a run may be resumed."""
    if _trains(run.request.of):
        run.folder.enough.unlink(missing_ok=True)
    else:
        write_text(run.folder.enough, run.request.of)


def _trains(run_id: str) -> bool:
    record = open_ledger().run(run_id)
    trained = open_ledger().latest_attempt(run_id, "train")
    if record.state.is_final or owner_is_gone(record.owner):
        return False
    return trained is None or trained.state is not StepState.SUCCEEDED
