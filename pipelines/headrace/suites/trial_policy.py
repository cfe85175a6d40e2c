"""Decide what the end of an attempt means for its trial, and read the status of attempts."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from headrace.clusters.shared_calls import EndedCall
from headrace.errors import LeaseEndsError, LeaseTakenError, StepError
from headrace.files.layout import RunFolder, StepFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.recipe.recipe import RetryPolicy
from headrace.recipe.suite import Objective, SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepStatus
from headrace.steps.retry_policy import decide
from headrace.steps.run import failure_of
from headrace.suites.records import PRUNED, Ended, OfAttempt, RunningTrial, Started
from headrace.suites.suite_state import TrialState

logger = logging.getLogger(__name__)

_MOST_A_LOOK = 100
_SHOWN = 100
_SHOWN_METRICS = 6

LEASE_OVER = (LeaseEndsError.__name__, LeaseTakenError.__name__)
"""Errors of attempts that end with their lease."""


def ended(
    started: Started, result: StepResult, objectives: Sequence[Objective], kept: float = 0.0
) -> Ended:
    """Return the journal's entry about the end of an attempt; `judge` decides what follows.

    Args:
        started: Its begin.
        result: How it ended.
        objectives: Objectives of the suite.
        kept: How far the trial's checkpoints have come: an attempt that has come further than
            those before does not count against the retries.
    """
    metrics = metrics_of(result.outputs)
    values, problem = values_of(metrics, objectives)
    is_pruned, failure = bool(result.outputs.get("pruned")), result.failure
    note = problem if result.state is StepState.SUCCEEDED and not is_pruned else ""
    usage = result.usage or AttemptUsage()
    held = {
        "node": usage.node or started.node,
        "nodes": len(started.machines) or 1,
        "gpus": started.gpus,
        "cpus": started.cpus,
    }
    return Ended(
        **started.model_dump(include=set(OfAttempt.model_fields)),
        state=result.state,
        is_final=True,
        pruned=is_pruned,
        started_at=result.started_at,
        finished_at=result.finished_at,
        metrics=metrics,
        objectives=values,
        failure_class=failure.failure_class if failure else None,
        error=failure.error if failure else "",
        message=failure.message if failure else note,
        kept=kept,
        environment=str(result.outputs.get("environment", "")),
        weights=str(result.outputs.get("weights_xxh3", "")),
        usage=usage.model_copy(update=held),
    )


def judge(
    row: TrialState,
    entry: Ended,
    spec: SuiteSpec,
    why_stopped: str = "",
    *,
    is_orphan: bool = False,
) -> Ended:
    """Return the entry with the decision whether its trial has ended with this attempt.

    Args:
        row: The trial before the end is recorded.
        entry: The end of its attempt.
        spec: Rules of the suite.
        why_stopped: Why the attempt was asked to stop; empty if it was not.
        is_orphan: Whether the driver of the attempt was lost.
    """
    is_cancelled = entry.state is StepState.CANCELLED
    if entry.pruned or (is_cancelled and why_stopped.startswith(PRUNED)):
        pruned = {"state": StepState.SUCCEEDED, "pruned": True}
        return entry.model_copy(
            update={**pruned, "failure_class": None, "error": "", "message": ""}
        )
    if entry.failure_class is None:
        return entry
    if row.unwanted:
        return entry.model_copy(update={"state": StepState.CANCELLED})
    is_without_driver = is_orphan and entry.state is StepState.LOST
    if is_cancelled or is_without_driver or entry.error in LEASE_OVER:
        return entry.model_copy(update={"is_final": False, "is_counted": False})
    if not entry.failure_class.is_retried or _is_over(row, entry, spec.time_limit):
        return entry
    policy = RetryPolicy(max_failures=spec.retries + 1)
    decision = decide((*row.failed, entry.as_failed), policy, elsewhere=True)
    changes = {
        "is_final": not decision.again,
        "is_counted": entry.kept <= row.kept,
        "message": "\n  ".join(filter(None, (entry.message, decision.why_not))),
    }
    return entry.model_copy(update=changes)


def never_begun(row: TrialState, why: str, failure_class: FailureClass) -> Ended:
    """Return the entry of a waiting trial that will not start: cancelled, or impossible here."""
    at, is_cancelled = time.time(), failure_class is FailureClass.CANCELLED
    return Ended(
        number=row.trial.number,
        attempt=row.attempts,
        state=StepState.CANCELLED if is_cancelled else StepState.FAILED,
        is_final=True,
        started_at=at,
        finished_at=at,
        failure_class=failure_class,
        message=why,
    )


def metrics_of(outputs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among an attempt's `metrics`."""
    given = outputs.get("metrics")
    named = given.items() if isinstance(given, Mapping) else ()
    return {str(name): float(value) for name, value in named if _is_number(value)}


def values_of(
    metrics: Mapping[str, float], objectives: Sequence[Objective]
) -> tuple[tuple[float, ...], str]:
    """Return the values of the objectives, or none of them and the problem if one is missing."""
    values = [metrics.get(each.metric) for each in objectives]
    for each, value in zip(objectives, values, strict=True):
        if value is None:
            names = ", ".join(sorted(metrics)) or "none"
            return (), f"It has no metric '{each.metric}', the suite's objective; it has: {names}"
        if not math.isfinite(value):
            return (), f"Its objective {each.metric} is {value}"
    return tuple(value for value in values if value is not None), ""


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max  # larger ones are no figure that can be compared
    return isinstance(value, float)


def _is_over(row: TrialState, entry: Ended, limit_s: float | None) -> bool:
    if limit_s is None or entry.state is not StepState.TIMED_OUT:
        return False
    return row.took_s + entry.finished_at - entry.started_at >= limit_s


def folder_of(run: RunFolder, row: TrialState) -> StepFolder:
    """Return the folder of a trial's newest attempt."""
    return run.trial(row.trial.number).step(row.attempts)


def left_by(folder: StepFolder, how: str) -> StepResult:
    """Return the result of an abandoned attempt, which may have written one."""
    try:
        found = mailbox.outcome(folder)
    except StepError as error:  # what it wrote is none
        how, found = error.what, None
    return found or mailbox.lost(folder, how)


def result_of(folder: StepFolder, call: EndedCall) -> StepResult:
    """Return the result of an attempt whose call has ended."""
    if isinstance(call.result, StepResult):
        return call.result
    if call.error is None:
        return left_by(folder, call.lost)
    at, failure = time.time(), failure_of(call.error)
    logger.error("%s could not be run: %s", folder.path, failure.trace)
    return StepResult(state=StepState.FAILED, failure=failure, started_at=at, finished_at=at)


class Glances:
    """The newest status of running attempts; of many, some are read at each look."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._statuses: dict[int, StepStatus] = {}
        self._turn = 0

    def look(self, running: Mapping[int, TrialState]) -> list[TrialState]:
        """Read the status of some attempts; return their trials."""
        self._statuses = {
            number: each for number, each in self._statuses.items() if number in running
        }
        count = min(len(running), _MOST_A_LOOK)
        rows = list(islice(cycle(running.values()), self._turn, self._turn + count))
        self._turn = (self._turn + count) % max(len(running), 1)
        for row in rows:
            self._statuses[row.trial.number] = _status(folder_of(self._run, row))
        return rows

    def done(self, row: TrialState) -> float:
        """Return the share of a running attempt that is done, 0 to 1."""
        progress = self._statuses.get(row.trial.number, _UNKNOWN).progress
        return min(progress.done / progress.total, 1.0) if progress.total else 0.0

    def shown(self, running: Mapping[int, TrialState]) -> tuple[RunningTrial, ...]:
        """Return the running trials, for `suite.json`."""
        return tuple(self._shown(row) for row in islice(running.values(), _SHOWN))

    def _shown(self, row: TrialState) -> RunningTrial:
        status = self._statuses.get(row.trial.number, _UNKNOWN)
        return RunningTrial(
            number=row.trial.number,
            name=row.trial.name,
            attempt=row.attempts,
            node=row.started.node if row.started else "",
            started_at=row.started.at if row.started else time.time(),
            done=round(self.done(row), 4),
            waits=status.progress.phase if status.state is StepState.QUEUED else "",
            metrics=dict(islice(status.metrics.items(), _SHOWN_METRICS)),
        )


_UNKNOWN = StepStatus(state=StepState.QUEUED)


def _status(folder: StepFolder) -> StepStatus:
    try:
        return mailbox.status(folder)
    except StepError:  # its disk is full, or its user wrote there
        return _UNKNOWN
