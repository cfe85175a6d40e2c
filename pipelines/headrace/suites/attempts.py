"""Attempts at trials by their folders: how they go, and what they have left."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import cycle, islice
from typing import TYPE_CHECKING

from headrace.clusters.shared_calls import EndedCall
from headrace.errors import StepError
from headrace.files.layout import RunFolder, StepFolder
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepStatus
from headrace.steps.run import failure_of
from headrace.suites.board import Board, Row
from headrace.suites.records import RunningTrial, SuiteSummary

if TYPE_CHECKING:
    from headrace.costs.forecast import Eta

logger = logging.getLogger(__name__)

_MOST_A_LOOK = 100
_SHOWN = 100
_SHOWN_METRICS = 6


def folder_of(run: RunFolder, row: Row) -> StepFolder:
    """Folder of a trial's newest attempt."""
    return run.trial(row.trial.number).attempt(row.attempts)


def left_by(folder: StepFolder, how: str) -> StepResult:
    """The result of an attempt that nobody waits for any more: it may have written one."""
    try:
        found = mailbox.outcome(folder)
    except StepError as error:  # what it wrote is none
        how, found = error.what, None
    return found or mailbox.lost(folder, how)


def result_of(folder: StepFolder, call: EndedCall) -> StepResult:
    """The result of an attempt whose call has ended, in whatever way."""
    if isinstance(call.result, StepResult):
        return call.result
    if call.error is None:
        return left_by(folder, call.lost)
    at, failure = time.time(), failure_of(call.error)
    logger.error("%s could not be run: %s", folder.path, failure.trace)
    return StepResult(state=StepState.FAILED, failure=failure, started_at=at, finished_at=at)


class Glances:
    """The newest status of attempts that run; of many, some at each look."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._seen: dict[int, StepStatus] = {}
        self._turn = 0

    def look(self, running: Mapping[int, Row]) -> list[Row]:
        """Read some; gives those that were read."""
        self._seen = {number: each for number, each in self._seen.items() if number in running}
        count = min(len(running), _MOST_A_LOOK)
        rows = list(islice(cycle(running.values()), self._turn, self._turn + count))
        self._turn = (self._turn + count) % max(len(running), 1)
        for row in rows:
            self._seen[row.trial.number] = _status(folder_of(self._run, row))
        return rows

    def done(self, row: Row) -> float:
        """Share of a running attempt that is done, 0 to 1."""
        progress = self._seen.get(row.trial.number, _UNKNOWN).progress
        return min(progress.done / progress.total, 1.0) if progress.total else 0.0

    def shown(self, running: Mapping[int, Row]) -> tuple[RunningTrial, ...]:
        """Those that run, for `suite.json`."""
        return tuple(self._shown(row) for row in islice(running.values(), _SHOWN))

    def _shown(self, row: Row) -> RunningTrial:
        seen = self._seen.get(row.trial.number, _UNKNOWN)
        return RunningTrial(
            number=row.trial.number,
            name=row.trial.name,
            attempt=row.attempts,
            node=row.started.node if row.started else "",
            started_at=row.started.at if row.started else time.time(),
            done=round(self.done(row), 4),
            waits=seen.progress.phase if seen.state is StepState.QUEUED else "",
            metrics=dict(islice(seen.metrics.items(), _SHOWN_METRICS)),
        )


def summary(
    board: Board, glances: Glances, total: int, eta: Eta | None, *, is_paused: bool
) -> SuiteSummary:
    """How a suite stands; `total` counts trials to come, too."""
    best = board.told_best
    return SuiteSummary(
        total=total,
        counts={state: count for state, count in board.counts.items() if count},
        paused=is_paused,
        running=glances.shown(board.running),
        best=best.trial.number if best else None,
        best_value=best.objectives[0] if best else None,
        eta_s=eta and eta.seconds,
        eta_error_s=eta and eta.half_s,
    )


_UNKNOWN = StepStatus(state=StepState.QUEUED)


def _status(folder: StepFolder) -> StepStatus:
    try:
        return mailbox.status(folder)
    except StepError:  # its disk is full, or its user wrote there
        return _UNKNOWN
