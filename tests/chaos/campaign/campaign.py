"""All trials of a campaign: the reference, then disturbed runs, several at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from chaos.campaign.checks import result_of
from chaos.campaign.course import Course
from chaos.campaign.disturbed_run import DisturbedRun
from chaos.campaign.ground import LOST_AFTER_S, Ground
from chaos.campaign.outcome import Outcome, Reference
from chaos.campaign.phases import Spans
from chaos.campaign.processes import Processes
from chaos.campaign.trials import Trial, draw
from headrace.errors import StepError
from headrace.states import StepState

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
