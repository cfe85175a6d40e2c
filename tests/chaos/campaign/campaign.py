"""All trials of a campaign: the reference, then disturbed runs, several at once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from chaos.campaign.checks import Result, left_over, result_of, wrong
from chaos.campaign.course import POLL_S, Course, HungError
from chaos.campaign.disturbance import Disturbance, Hit, Spans
from chaos.campaign.ground import LOST_AFTER_S, Ground
from chaos.campaign.processes import Processes, describe
from chaos.campaign.trials import Trial, draw
from headrace.errors import StepError
from headrace.ledger.rows import RunRecord
from headrace.record import Record
from headrace.states import StepState


class Reference(Record):
    """The run that nobody disturbs."""

    result: Result
    """What it gave."""
    spans: dict[str, float]
    """Seconds that processes lived, by `phase/role`."""


class Outcome(Record):
    """How a disturbed run ended."""

    trial: Trial
    """What was to be done to it."""
    hit: Hit | None
    """What was done; None when it had ended before."""
    commands: tuple[str, ...]
    """Commands that its user needed, and how they ended."""
    seconds: float
    """From its start to its end, seconds."""
    wrong: tuple[str, ...] = ()
    """How its result differs from the reference."""
    hung: str = ""
    """What was waited for in vain; empty when all ended in time."""
    left: tuple[str, ...] = ()
    """What it left behind, with processes that were there when it hung."""

    @property
    def is_well(self) -> bool:
        """Whether it ended as if nothing had been done to it."""
        return not (self.wrong or self.hung or self.left)


_GONE_S = 60.0
"""No process of a run may be left so long after its end."""


class DisturbedRun:
    """One run.

    Args:
        trial: What is to be done to it.
        reference: What it is compared with.
        home: Its home, fresh.
        course: Gives its commands, which call the given function often.
    """

    def __init__(
        self,
        trial: Trial,
        reference: Reference,
        home: Path,
        course: Callable[[Callable[[], None]], Course],
    ) -> None:
        self._trial = trial
        self._reference = reference.result
        self._home = home
        self._processes = Processes(home)
        self._disturbance = Disturbance(trial, reference.spans, home, self._processes)
        self._course = course(self._disturbance.tick)
        self._began = time.monotonic()

    def go(self) -> Outcome:
        """Make the run; none of its processes is left afterwards."""
        try:
            run = self._course.go()
            seconds = time.monotonic() - self._began
            self._course.wait_for(lambda: self._disturbance.is_over, "SIGCONT")
            return self._judged(run, seconds, self._processes_left())
        except HungError as error:
            return self._outcome(
                seconds=time.monotonic() - self._began,
                hung=str(error),
                left=describe(self._processes.living()),
            )
        finally:
            self._disturbance.let_go()
            self._processes.kill()
            self._course.join()

    def _processes_left(self) -> tuple[str, ...]:
        until = time.monotonic() + _GONE_S
        while (found := self._processes.living()) and time.monotonic() < until:
            time.sleep(POLL_S)
        return describe(found)

    def _judged(self, run: RunRecord | None, seconds: float, left: tuple[str, ...]) -> Outcome:
        faults = tuple(wrong(self._home, run, self._reference))
        if run is not None:
            memory = self._disturbance.memory
            left += tuple(left_over(self._home, run, self._reference, memory))
        return self._outcome(seconds=seconds, wrong=faults, left=left)

    def _outcome(
        self,
        *,
        seconds: float,
        wrong: tuple[str, ...] = (),
        hung: str = "",
        left: tuple[str, ...] = (),
    ) -> Outcome:
        return Outcome(
            trial=self._trial,
            hit=self._disturbance.hit,
            commands=tuple(self._course.commands),
            seconds=seconds,
            wrong=wrong,
            hung=hung,
            left=left,
        )


_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Which trials are made, and where."""

    ground: Ground
    """Folder of all runs; homes of those that are not well stay there."""
    seed: int
    """Draws the trials."""
    numbers: Sequence[int]
    """Numbers of the trials."""
    jobs: int = 1
    """Runs at once."""
    limit_s: float = 600.0
    """Time after which a run counts as hung, seconds."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set to end all trials."""

    def reference(self) -> Reference:
        """Make the run that nobody disturbs.

        Raises:
            StepError: It did not succeed.
        """
        self.ground.prepare()
        home = self.ground.home("reference")
        processes = Processes(home)
        spans = Spans(home, processes)
        course = Course(self.ground, home, self.limit_s, spans.tick)
        try:
            run = course.go()
        finally:
            processes.kill()
            course.join()
        if run is None or run.state is not StepState.SUCCEEDED:
            raise StepError(
                "The run that nobody disturbs did not succeed", f"See {home / 'commands.log'}."
            )
        return Reference(result=result_of(home, run), spans=spans.lengths())

    def outcomes(self, reference: Reference) -> Iterator[Outcome]:
        """Make all trials; each is given when it is over."""
        trials = [draw(self.seed, number, LOST_AFTER_S) for number in self.numbers]
        with ThreadPoolExecutor(self.jobs) as pool:
            running = [pool.submit(self._until_hit, trial, reference) for trial in trials]
            try:
                for each in as_completed(running):
                    yield each.result()
            finally:
                self.stop.set()
                pool.shutdown(cancel_futures=True)

    def _until_hit(self, trial: Trial, reference: Reference) -> Outcome:
        """Make a trial; anew, with an earlier moment, when the run had ended before."""
        for number in range(_TRIES):
            outcome = self._made(trial.earlier(number), reference)
            if outcome.hit is not None or not outcome.is_well:
                break
        return outcome

    def _made(self, trial: Trial, reference: Reference) -> Outcome:
        home = self.ground.home(f"trial-{trial.number}")

        def course(tick: Callable[[], None]) -> Course:
            return Course(self.ground, home, self.limit_s, lambda: self._unless_stopped(tick))

        outcome = DisturbedRun(trial, reference, home, course).go()
        if outcome.is_well:
            shutil.rmtree(home)
        return outcome

    def _unless_stopped(self, tick: Callable[[], None]) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt
        tick()
