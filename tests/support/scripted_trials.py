"""Suites in tests: trials that do what their values say, and a driver for them."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.clusters.cancellable_call import node_name, wanted
from headrace.clusters.fleet import Fleet
from headrace.errors import RecipeError
from headrace.files.atomic import is_there, write_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.suite import SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps.context import StepContext
from headrace.steps.mailbox import Failure, Progress, StepResult, StepStatus
from headrace.steps.node_facts import software
from headrace.steps.run import open_context
from headrace.suites.lease_driver import Work
from headrace.suites.node_slots import NodeCapacity
from headrace.suites.records import Ended, Entry, Point, Trial, TrialJob
from headrace.suites.suite_state import SuiteState, TrialState
from support.factories import step_spec

NUM_CPUS = 2
"""CPUs that each node of these suites says it has."""


def capacity() -> Any:
    cpus = tuple(range(NUM_CPUS))
    return NodeCapacity(
        machine=f"m-{node_name()}", cpus=cpus, memory_bytes=2**30, software=software()
    )


def trial(number: int, **values: Any) -> Trial:
    return Trial(number=number, name=f"t{number}", values=values, group=number)


class Listed:
    """A source of trials that a test lists; those that run on are pruned where it says so."""

    def __init__(self, *points: Point) -> None:
        self._left = [trial(number, **point) for number, point in enumerate(points, 1)]
        self._suite_state = SuiteState()
        self.told: list[int] = []

    @property
    def total(self) -> int:
        return len(self._suite_state.rows) + len(self._left)

    @property
    def is_exhausted(self) -> bool:
        return not self._left

    def watch(self, suite_state: SuiteState) -> None:
        self._suite_state = suite_state

    def more(self, wanted: int) -> Sequence[Trial]:
        block, self._left = self._left, []
        return [each for each in block if each.number not in self._suite_state.rows]

    def add(self, point: Point) -> Iterable[Trial]:
        if "bad" in point:
            raise RecipeError("bad is no key")
        return [trial(len(self._suite_state.rows) + 1, **point)]

    def take(self, entry: Entry) -> None:
        if isinstance(entry, Ended):
            self.told.append(entry.number)

    def should_prune(self, row: TrialState) -> bool:
        return bool(row.trial.values.get("prune"))


def run_trial(job: TrialJob, fleet: Fleet | None = None) -> StepResult:
    """Do what the trial's values say, with a line in `executions` of the run for each attempt.

    `s`: run so many seconds; `until`: run until that file is there; `die`: kill the worker, so
    many times; `fail`: end with that failure class, the first `times` attempts;
    `gives`: metrics of `GARBAGE`; `scribbles`: write nonsense over the files of the attempt;
    `back`: seconds by which the clock is set back meanwhile.
    """
    run, values = RunFolder(Path(job.run_folder)), job.trial.values
    folder = run.trial(job.trial.number).step(job.attempt)
    began = time.time()
    _line(run, f"{job.trial.number} {job.attempt} began")
    for node in fleet.nodes(2, 10) if fleet else ():
        _line(run, f"{job.trial.number} {job.attempt} {node.name}")
    if values.get("scribbles"):
        for file in (folder.result, folder.status):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"\x00{")
    if job.attempt <= int(str(values.get("die", 0))):
        os.kill(os.getpid(), signal.SIGKILL)
    failure = _failure(folder, values, job.attempt)
    _line(run, f"{job.trial.number} {job.attempt} {'failed' if failure else 'ended'}")
    result = StepResult(
        state=_STATES.get(failure.failure_class, StepState.FAILED)
        if failure
        else StepState.SUCCEEDED,
        failure=failure,
        outputs={} if failure else {"metrics": _metrics(values)},
        started_at=began,
        finished_at=time.time() - float(str(values.get("back", 0))),
        usage=AttemptUsage(gpu_memory_bytes=values.get("gpu_bytes")),  # type: ignore[arg-type]
    )
    write_record(folder.result, result)
    return result


GARBAGE: dict[str, Any] = {
    "nan": {"loss": math.nan},
    "text": {"loss": "high"},
    "huge": {"loss": 10**400},
    "other": {"accuracy": 1.0},
    "list": ["loss"],
    "nothing": None,
}
"""What trials may give as their metrics, though it is no use."""


def _metrics(values: Point) -> Any:
    return GARBAGE[str(values["gives"])] if "gives" in values else {"loss": values.get("loss", 1.0)}


_STATES = {
    FailureClass.CANCELLED: StepState.CANCELLED,
    FailureClass.TIMED_OUT: StepState.TIMED_OUT,
    FailureClass.PREEMPTED: StepState.PREEMPTED,
}


def _failure(folder: StepFolder, values: Point, attempt: int) -> Failure | None:
    until, end_s = values.get("until"), time.monotonic() + float(str(values.get("s", 0)))
    while (until and not Path(str(until)).exists()) or time.monotonic() < end_s:
        status = StepStatus(
            state=StepState.RUNNING, progress=Progress(done=1, total=4), metrics={"loss": 2.0}
        )
        write_record(folder.status, status)
        if is_there(folder.cancel) or not wanted():
            return Failure(failure_class=FailureClass.CANCELLED, error="", message="cancelled")
        time.sleep(0.05)
    if "fail" in values and attempt <= int(str(values.get("times", 99))):
        return Failure(
            failure_class=FailureClass(values["fail"]),
            error=str(values.get("error", "")),
            message="as the test says",
        )
    return None


def _line(run: RunFolder, text: str) -> None:
    with (run.path / "executions").open("a") as file:
        file.write(f"{text}\n")


def executions(run: RunFolder, what: str = "began") -> list[tuple[int, int]]:
    """Number and attempt of all attempts that have begun, or `ended` well, or `failed`."""
    try:
        lines = (run.path / "executions").read_text().splitlines()
    except FileNotFoundError:
        return []
    words = [line.split() for line in lines]
    return [(int(number), int(attempt)) for number, attempt, told in words if told == what]


def late_capacity() -> Any:
    """As `capacity`, but one of the nodes takes its time."""
    time.sleep(1.0 if node_name() == "node-1" else 0.0)
    return capacity()


def work() -> Work:
    return Work(dataset="none", run_trial=run_trial, capacity=capacity)


def suite_context(lease: LeaseFolder, name: str, **suite: Any) -> StepContext:
    """A suite step in a lease; asking for one of the same name again gives its next attempt."""
    run = RunFolder(lease.path.parent.parent / "runs" / name)
    recipe = load_recipe("digits").model_copy(update={"suite": SuiteSpec(**suite)})
    write_record(run.recipe, recipe)
    write_record(run.site, load_site("laptop"))
    number = next(number for number in _numbers() if not lease.step(number).path.exists())
    folder = lease.step(number)
    folder.logs.mkdir(parents=True)
    write_record(folder.spec, step_spec(run, "suite", key=f"{name}/suite/{number}"))
    return open_context(folder)


def _numbers() -> Iterator[int]:
    yield from range(1000, 10000)
