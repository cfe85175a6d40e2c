"""Run one step: `python -m headrace.steps.run STEP_DIR`.

Host, command line and tests call this. It writes `status.json` while the step runs and
`result.json` once, as the last file. Exit code 0 means that a result was written.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, StepError, words_of
from headrace.files.atomic import is_there, read_record, write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.files.machine import storage_error
from headrace.informing import inform
from headrace.processes.identity import begin_child, end_quickly
from headrace.states import FailureClass, StepState
from headrace.steps.context import StepContext, resolved
from headrace.steps.mailbox import Failure, StepResult, StepSpec, StepStatus
from headrace.steps.step_kinds import step_kind

logger = logging.getLogger(__name__)

_WINDOW_S = 30.0
StepFunction = Callable[[StepContext], dict[str, Any]]

MODULES = {
    "pack": "headrace.packing.pack_step",
    "stage": "headrace.staging.stage_step",
    "train": "headrace.training.train_step",
    "evaluate": "headrace.evaluation.evaluate_step",
    "nodes": "headrace.steps.node_facts",
    "suite": "headrace.suites.suite_step",
    "sites": "headrace.multi_site.step",
}
"""Modules of the built-in kinds of steps; only here are these higher layers named together."""

_STATES = {
    FailureClass.CANCELLED: StepState.CANCELLED,
    FailureClass.TIMED_OUT: StepState.TIMED_OUT,
    FailureClass.PREEMPTED: StepState.PREEMPTED,
    FailureClass.LOST: StepState.LOST,
}


def step_function(kind: str) -> StepFunction:
    """Return the function `run(context) -> outputs` of a kind, built-in or of another package."""
    if kind not in MODULES:
        return step_kind(kind, tuple(MODULES)).run
    function: StepFunction = importlib.import_module(MODULES[kind]).run
    return function


def run_step(folder: StepFolder, function: StepFunction | None = None) -> StepResult:
    """Run the step in `folder` to its result; a step with a result is not run again.

    `function` does the work; the default is that of the step's kind.
    """
    existing = read_record(folder.result, StepResult)
    if existing is not None:
        return existing
    try:
        context = open_context(folder)
    except HeadraceError as error:
        if not is_there(folder.spec):
            raise  # not a step
        return refused(folder, error)
    context.event("started", kind=context.spec.kind, attempt=context.spec.attempt)
    with Reporter(context) as reporter:
        result = _outcome(context, function)
    reporter.update(result.state)
    context.event("finished", state=result.state.value)
    write_record(folder.result, result)
    return result


def open_context(folder: StepFolder) -> StepContext:
    """Read spec, recipe and site of a step; raise StepError if a file is missing."""
    spec = read_record(folder.spec, StepSpec)
    if spec is None:
        raise StepError(f"{folder.path} holds no spec.json", "Give the folder of a step.")
    recipe, site = resolved(RunFolder(Path(spec.run_folder)))
    return StepContext(folder=folder, spec=spec, recipe=recipe, site=site)


def refused(folder: StepFolder, error: HeadraceError) -> StepResult:
    """Write and return the result of a step that cannot begin."""
    failure, now = failure_of(error), time.time()
    state = _state(failure.failure_class)
    result = StepResult(state=state, failure=failure, started_at=now, finished_at=now)
    _log_failure(str(folder.path), failure)
    write_record(folder.result, result)
    return result


def _outcome(context: StepContext, function: StepFunction | None) -> StepResult:
    failure: Failure | None = None
    outputs: dict[str, object] = {}
    try:
        outputs = (function or step_function(context.spec.kind))(context)
    except Exception as error:
        failure = _blamed(failure_of(error), context)
        if failure.failure_class.is_retried:  # a fault of the machine, or headrace's own
            logger.exception("Step %s failed", context.spec.key)
        else:
            _log_failure(context.spec.key, failure)
    state = StepState.SUCCEEDED if failure is None else _state(failure.failure_class)
    return StepResult(
        state=state,
        failure=failure,
        outputs=outputs,
        started_at=context.started_at,
        finished_at=context.started_at + context.elapsed_s,  # the clock may have been set
        usage=context.usage,
    )


def _blamed(failure: Failure, context: StepContext) -> Failure:
    """Return the stop request as cause: a step asked to stop may lose its machines first."""
    if failure.failure_class.is_retried:
        try:
            context.check()
        except HeadraceError as request:
            return failure_of(request)
    return failure


def _log_failure(key: str, failure: Failure) -> None:
    trace = f"\n{failure.trace}" if failure.trace else ""
    logger.error("Step %s failed: %s%s", key, failure.message, trace)


def _state(failure_class: FailureClass) -> StepState:
    return _STATES.get(failure_class, StepState.FAILED)


def failure_of(error: BaseException) -> Failure:
    """Describe an error for the result file; an unknown error keeps its trace."""
    named = error if isinstance(error, HeadraceError) else storage_error(error, Path())
    if named is not None:
        return Failure(
            failure_class=named.failure_class,
            error=type(named).__name__,
            message=str(named),
            trace=getattr(named, "trace", ""),
            where=getattr(named, "where", ""),
        )
    kind, message = FailureClass.INFRASTRUCTURE, words_of(error) or repr(error)
    if isinstance(error, MemoryError):
        kind = FailureClass.OUT_OF_MEMORY
    trace = words_of("".join(traceback.format_exception(error)))
    return Failure(failure_class=kind, error=type(error).__name__, message=message, trace=trace)


class Rate:
    """Units per second over the last half minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()
        self._unit = ""

    def add(self, at: float, done: float, unit: str) -> float | None:
        """Add a reading at `at`, seconds; return the rate if there are two of the unit, or None."""
        stands_still = bool(self._points) and done <= self._points[0][1]
        if unit != self._unit or stands_still:  # warm-up does not count
            self._points.clear()
            self._unit = unit
        self._points.append((at, done))
        while self._points[0][0] < at - _WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        span_s = at - self._points[0][0]
        gained = done - self._points[0][1]
        return gained / span_s if span_s > 0 and gained > 0 else None


class Reporter:
    """Writes `status.json` of a step every second, from its own thread."""

    def __init__(self, context: StepContext, interval_s: float = 1.0) -> None:
        self._context = context
        self._interval_s = interval_s
        self._rate = Rate()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-status", daemon=True)

    def __enter__(self) -> Reporter:
        self.update(StepState.RUNNING)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def write(self, state: StepState) -> None:
        """Write the status once."""
        progress = self._context.current
        if state is StepState.SUCCEEDED and progress.total is not None:
            progress = progress.model_copy(update={"done": progress.total})
        rate = self._rate.add(self._context.elapsed_s, progress.done, progress.unit)
        left = None if progress.total is None else max(progress.total - progress.done, 0)
        status = StepStatus(
            state=state,
            progress=progress,
            rate=rate,
            eta_s=left / rate if left is not None and rate else None,
            elapsed_s=self._context.elapsed_s,
            metrics=dict(self._context.metrics),
            restarts=tuple(self._context.restarts),
        )
        write_record(self._context.folder.status, status)

    def update(self, state: StepState) -> None:
        """Write the status if possible; a failure does not affect the work."""
        inform(self._context.run_folder, "status", partial(self.write, state), within_s=None)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.update(StepState.RUNNING)


@cache
def load() -> None:
    """Import what drivers need, once, in the process that they are forked from."""
    end_quickly()
    for module in MODULES.values():
        importlib.import_module(module)


def main(arguments: list[str]) -> int:
    """Run the step driver."""
    begin_child()
    run_step(StepFolder(Path(arguments[0]).absolute()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
