"""Runs a whole job from this process, without Airflow: what `headrace run` does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.errors import CapacityError, LeaseError, StepNotEndedError, StorageFullError
from headrace.files.machine import full_words, is_full
from headrace.ledger.ledger import open_ledger
from headrace.runs import leases
from headrace.runs.flow import PlannedStep, steps_of
from headrace.runs.overview import look
from headrace.runs.reaper import end_run
from headrace.runs.retrying import MAX_FAILURES
from headrace.runs.runs import Run
from headrace.runs.steps import Ticket, collect, conclude, start_step
from headrace.states import StepState
from headrace.steps.mailbox import StepResult

logger = logging.getLogger(__name__)

_POLL_S = 0.25
_RETRY_PAUSE_S = 3.0
_ASK_AGAIN_S = 1.0

Tick = Callable[[], None]


def execute(run: Run, tick: Tick) -> StepResult | None:
    """Run the steps of a job one after another, each on its lease; leases are released at the end.

    `tick` is called every quarter of a second while something is waited for; it may raise to stop.

    Returns:
        The result of the step that failed, or None when all succeeded.

    Raises:
        LeaseError: No lease could be opened.
        StorageFullError: A folder that the run needs has no room.
    """
    try:
        failed = _steps(run, tick)
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        state = StepState.CANCELLED if stopped else StepState.FAILED
        end_run(run, state, "interrupted" if stopped else f"the run ended with: {error}")
        if isinstance(error, OSError) and is_full(error):
            raise _no_room(run, error) from error
        raise
    end_run(run, failed.state if failed else StepState.SUCCEEDED, f"run {run.run_id} ended")
    return failed


def _no_room(run: Run, error: OSError) -> StorageFullError:
    return StorageFullError(
        f"The run cannot go on: {full_words(error, run.folder.path)}",
        f"Free some space there, then go on with it: headrace resume {run.run_id}",
    )


def _steps(run: Run, tick: Tick) -> StepResult | None:
    steps = steps_of(run.recipe, run.request.kind)
    for index, step in enumerate(steps):
        result = _until_decided(run, step, tick)
        if result.state is not StepState.SUCCEEDED:
            return result
        if step.role not in {later.role for later in steps[index + 1 :]}:
            leases.release(run, step.role, f"step {step.name} was the last on this lease")
    return None


def _until_decided(run: Run, step: PlannedStep, tick: Tick) -> StepResult:
    num_before = sum(one.state.is_final for one in open_ledger().attempts(run.run_id, step.name))
    num_unopened, told = 0, ""
    while True:
        try:
            result = _attempt(run, step, tick)
        except LeaseError as error:  # did not start, or ended before the step was in its mailbox
            num_unopened += 1
            if num_unopened == MAX_FAILURES:
                raise
            why = "for the same reason" if error.what == told else error.what
            logger.warning("Step %s got no lease and is tried again: %s", step.name, why)
            told = error.what
            _pause(_RETRY_PAUSE_S, tick)
            continue
        if result.state is StepState.SUCCEEDED:
            return result
        decision, result = conclude(run, step.name, result, num_before=num_before)
        if not decision.again:
            return result
        num_unopened = 0
        _pause(_RETRY_PAUSE_S, tick)


def _pause(seconds: float, tick: Tick) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tick()
        time.sleep(_POLL_S)


def _attempt(run: Run, step: PlannedStep, tick: Tick) -> StepResult:
    started = _when_there_is_room(run, step, tick)
    if isinstance(started, StepResult):
        return started
    noted = False
    while True:
        seen = look(started.lease, started.folder, run.site.limits.lost_after)
        if seen.lease.dashboard_url and not noted:
            leases.note_ready(run, started.lease_id)
            noted = True
        tick()
        if seen.final:
            try:
                return collect(run, started)
            except StepNotEndedError:
                logger.warning("Lease %s gives signs of life again", started.lease_id)
        time.sleep(_POLL_S)


def _when_there_is_room(run: Run, step: PlannedStep, tick: Tick) -> Ticket | StepResult:
    while True:
        try:
            return start_step(run, step.name)
        except CapacityError:
            _pause(_ASK_AGAIN_S, tick)
