"""One run that is disturbed, from its command to the look at what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from chaos.campaign.checks import left_over, wrong
from chaos.campaign.course import POLL_S, Course, HungError
from chaos.campaign.disturbance import Disturbance
from chaos.campaign.outcome import Outcome, Reference
from chaos.campaign.processes import Processes, describe
from chaos.campaign.trials import Trial
from headrace.ledger.rows import RunRecord

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
