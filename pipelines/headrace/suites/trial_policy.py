"""What the end of an attempt means for its trial, and how attempts go, by their folders."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from headrace.clusters.shared_calls import EndedCall
from headrace.errors import LeaseEndsError, LeaseTakenError, StepError
from headrace.files.layout import RunFolder, StepFolder
from headrace.recipe.recipe import RetryPolicy
from headrace.recipe.suite import Objective, SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepStatus
from headrace.steps.retry_policy import Attempt, decide
from headrace.steps.run import failure_of
from headrace.steps.usage import AttemptUsage
from headrace.suites.records import PRUNED, Ended, OfAttempt, RunningTrial, Started, SuiteSummary
from headrace.suites.suite_state import SuiteState, TrialState

if TYPE_CHECKING:
    from headrace.suites.trial_order import Eta

logger = logging.getLogger(__name__)

_MOST_A_LOOK = 100
_SHOWN = 100
_SHOWN_METRICS = 6

LEASE_OVER = (LeaseEndsError.__name__, LeaseTakenError.__name__)
"""Errors of attempts that end since their lease does."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of a trial after an attempt."""

    state: StepState
    is_final: bool = True
    is_counted: bool = True
    pruned: bool = False
    why_not: str = ""
    """Why no attempt follows, where the failure alone does not say; for the user."""


def judge(
    row: TrialState, result: StepResult, spec: SuiteSpec, *, why_stopped: str, kept: float
) -> Verdict:
    """Decide whether a trial has ended with this attempt.

    Args:
        row: The trial, before the attempt's end is noted.
        result: How the attempt ended.
        spec: Rules of the suite.
        why_stopped: Why the attempt was asked to stop; empty when nobody did.
        kept: How far the trial's checkpoints have come: an attempt that has come further than
            those before does not count against the retries.
    """
    state, failure = result.state, result.failure
    if result.outputs.get("pruned"):
        return Verdict(state=StepState.SUCCEEDED, pruned=True)
    if state is StepState.SUCCEEDED or failure is None:
        return Verdict(state=state)
    if why_stopped.startswith(PRUNED) and state is StepState.CANCELLED:
        return Verdict(state=StepState.SUCCEEDED, pruned=True)
    if row.unwanted:
        return Verdict(state=StepState.CANCELLED)
    if state is StepState.CANCELLED or failure.error in LEASE_OVER:  # the driver or its lease went
        return Verdict(state=state, is_final=False, is_counted=False)
    is_over = _is_over(row, result, spec.time_limit)
    if not failure.failure_class.is_retried or is_over:
        return Verdict(state=StepState.TIMED_OUT if is_over else state)
    attempt = Attempt(
        failure_class=failure.failure_class,
        error=failure.error,
        message=failure.message,
        kept=kept,
        machines=",".join(row.started.machines) if row.started else "",
    )
    policy = RetryPolicy(max_failures=spec.retries + 1)
    decision = decide((*row.failed, attempt), policy, elsewhere=True)
    return Verdict(
        state=state,
        is_final=not decision.again,
        is_counted=kept <= row.kept,
        why_not=decision.why_not,
    )


def ended(
    started: Started,
    result: StepResult,
    objectives: Sequence[Objective],
    verdict: Verdict,
    kept: float = 0.0,
) -> Ended:
    """The journal's entry about the end of an attempt; see `judge` for `kept`."""
    metrics = metrics_of(result.outputs)
    values, problem = values_of(metrics, objectives)
    failure = None if verdict.state is StepState.SUCCEEDED else result.failure
    told = problem if verdict.state is StepState.SUCCEEDED and not verdict.pruned else ""
    usage = result.usage or AttemptUsage()
    held = {
        "node": usage.node or started.node,
        "nodes": len(started.machines) or 1,
        "gpus": started.gpus,
        "cpus": started.cpus,
    }
    return Ended(
        **started.model_dump(include=set(OfAttempt.model_fields)),
        state=verdict.state,
        is_final=verdict.is_final,
        is_counted=verdict.is_counted,
        pruned=verdict.pruned,
        started_at=result.started_at,
        finished_at=result.finished_at,
        metrics=metrics,
        objectives=values,
        failure_class=failure.failure_class if failure else None,
        error=failure.error if failure else "",
        message="\n  ".join(filter(None, (failure.message, verdict.why_not))) if failure else told,
        kept=kept,
        usage=usage.model_copy(update=held),
    )


def never_begun(row: TrialState, at: float, why: str, failure_class: FailureClass) -> Ended:
    """The entry of a waiting trial that is not begun any more: cancelled, or impossible here."""
    is_cancelled = failure_class is FailureClass.CANCELLED
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
    """The figures among what an attempt gave as `metrics`."""
    given = outputs.get("metrics")
    named = given.items() if isinstance(given, Mapping) else ()
    return {str(name): float(value) for name, value in named if _is_number(value)}


def values_of(
    metrics: Mapping[str, float], objectives: Sequence[Objective]
) -> tuple[tuple[float, ...], str]:
    """Values of the objectives, none unless all are there; and what is wrong, else nothing."""
    values = [metrics.get(each.metric) for each in objectives]
    for each, value in zip(objectives, values, strict=True):
        if value is None:
            told = ", ".join(sorted(metrics)) or "none"
            return (), f"It gave no figure '{each.metric}', the suite's objective; it gave: {told}"
        if not math.isfinite(value):
            return (), f"Its objective {each.metric} is {value}"
    return tuple(value for value in values if value is not None), ""


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max  # larger ones are no figure that can be compared
    return isinstance(value, float)


def _is_over(row: TrialState, result: StepResult, limit_s: float | None) -> bool:
    if limit_s is None or result.state is not StepState.TIMED_OUT:
        return False
    return row.took_s + result.finished_at - result.started_at >= limit_s


def folder_of(run: RunFolder, row: TrialState) -> StepFolder:
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

    def look(self, running: Mapping[int, TrialState]) -> list[TrialState]:
        """Read some; gives those that were read."""
        self._seen = {number: each for number, each in self._seen.items() if number in running}
        count = min(len(running), _MOST_A_LOOK)
        rows = list(islice(cycle(running.values()), self._turn, self._turn + count))
        self._turn = (self._turn + count) % max(len(running), 1)
        for row in rows:
            self._seen[row.trial.number] = _status(folder_of(self._run, row))
        return rows

    def done(self, row: TrialState) -> float:
        """Share of a running attempt that is done, 0 to 1."""
        progress = self._seen.get(row.trial.number, _UNKNOWN).progress
        return min(progress.done / progress.total, 1.0) if progress.total else 0.0

    def shown(self, running: Mapping[int, TrialState]) -> tuple[RunningTrial, ...]:
        """Those that run, for `suite.json`."""
        return tuple(self._shown(row) for row in islice(running.values(), _SHOWN))

    def _shown(self, row: TrialState) -> RunningTrial:
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
    suite_state: SuiteState, glances: Glances, total: int, eta: Eta | None, *, is_paused: bool
) -> SuiteSummary:
    """How a suite stands; `total` counts trials to come, too."""
    best = suite_state.told_best
    return SuiteSummary(
        total=total,
        counts={state: count for state, count in suite_state.counts.items() if count},
        paused=is_paused,
        running=glances.shown(suite_state.running),
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
