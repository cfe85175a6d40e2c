"""The driver of a suite: starts attempts where there is room, and records their ends.

Where attempts run, on the nodes of a lease or at several sites, is left to its subclasses.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from functools import partial

from headrace.errors import HeadraceError, LeaseLostError, SuiteFailedError
from headrace.files.atomic import is_there, write_record
from headrace.informing import inform
from headrace.recipe.suite import SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.context import StepContext
from headrace.steps.mailbox import Progress
from headrace.suites.event_log import EventWriter, Journal, Needs, Retention, TakenOverError
from headrace.suites.points import PointSource
from headrace.suites.records import PRUNED, Added, SuiteSummary
from headrace.suites.suite_state import Controls, SuiteState, TrialState
from headrace.suites.trial_order import Eta, trial_order
from headrace.suites.trial_policy import Glances, folder_of, never_begun

AGAIN = "Run them again: headrace suite retry, then headrace resume or clear the task in Airflow."
_LOOK_EVERY_S = 1.0


class SuiteDriver(ABC):
    """Runs the trials of a suite to their ends; the journal holds all of its state.

    Attributes:
        suite_state: State of the trials.
    """

    def __init__(
        self, context: StepContext, journal: Journal, source: PointSource, needs: Needs
    ) -> None:
        self._context, self._journal, self._source = context, journal, source
        self._run = context.run_folder
        self._spec = context.recipe.suite or SuiteSpec()
        self._controls = Controls(self._run, self._spec.max_running)
        self._glances, self._order = Glances(self._run), trial_order(context.recipe)
        suite_state = SuiteState(objectives=context.recipe.objectives)
        keeps = Retention(self._spec.keep_checkpoints, self._remove_checkpoints)
        self._events = EventWriter(journal, source, needs, suite_state, keeps)
        self.suite_state, self._queue = self._events.suite_state, self._events.queue
        self._failed_before = 0
        self._leaves = False
        self._looked_s = float("-inf")

    @abstractmethod
    def _collect(self) -> None:
        """Record what has happened to attempts; wait a moment for it."""

    @abstractmethod
    def _observe(self) -> None:
        """Look at the places of attempts, once per second."""

    @abstractmethod
    def _ask(self) -> None:
        """Request places for the trials that wait, once per second."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin attempts where there is room."""

    @abstractmethod
    def _num_wanted(self) -> int:
        """Return how many further trials a sampler may propose."""

    @abstractmethod
    def _stop_attempts(self, why: HeadraceError) -> None:
        """End running attempts; their trials wait for another driver."""

    def run(self) -> None:
        """Run the trials that have not ended.

        Raises:
            StepCancelledError: The suite was cancelled.
            SuiteFailedError: `suite.stop_after_failures` trials have failed.
            LeaseEndsError: The lease ends first.
        """
        self._restore()
        try:
            while not self._is_over():
                self._context.check()
                self._turn()
            self._tell()
        except (TakenOverError, LeaseLostError):
            raise
        except HeadraceError as error:
            self._stop_attempts(error)
            self._tell()
            raise

    def _is_over(self) -> bool:
        suite_state = self.suite_state
        if suite_state.running:
            return False
        if self._leaves:
            raise self._context.lease_over(
                f"{suite_state.num_ended} of {self._source.total} trials ended"
            )
        if self._has_too_many_failures:
            raise SuiteFailedError(
                f"{suite_state.num_failed} trials have failed; suite.stop_after_failures is "
                f"{self._spec.stop_after_failures}; {suite_state.commonest_failure}",
                f"Correct the cause. {AGAIN}",
            )
        return self._source.is_exhausted and suite_state.num_ended == len(suite_state.rows)

    @property
    def _has_too_many_failures(self) -> bool:
        most = self._spec.stop_after_failures
        return most is not None and self.suite_state.num_failed - self._failed_before >= most

    def _restore(self) -> None:
        self._events.restore()
        most = self._spec.stop_after_failures
        if most is not None and self.suite_state.num_failed >= most:  # it was resumed after that
            self._failed_before = self.suite_state.num_failed

    def _turn(self) -> None:
        self._collect()
        self._propose()  # what is asked before the first turn is asked of these, too
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._look()
        self._begin()

    def _look(self) -> None:
        """Do the work of each second."""
        self._observe()
        self._apply_commands()
        for row in self._glances.look(self.suite_state.running):
            if self._source.should_prune(row):
                self._stop(row, f"{PRUNED}: it promises little")
        self._leaves = self._leaves or is_there(self._context.lease_folder.notice)
        if self._spec.order == "longest":
            asked = partial(self._order.expected, self.suite_state)
            expected_s = inform(self._run, "forecast for the order", asked, dict)
            if expected_s is not None:
                self._queue.reorder(expected_s)
        self._ask()
        self._journal.sync_now_and_then()
        self._tell()

    def _stop(self, row: TrialState, why: str) -> None:
        """Ask a running attempt to stop."""
        mailbox.request_cancel(folder_of(self._run, row), why)

    def _remove_checkpoints(self, row: TrialState) -> None:
        shutil.rmtree(self._run.trial(row.trial.number).checkpoints, ignore_errors=True)

    def _apply_commands(self) -> None:
        applied = self._controls.apply_commands(self.suite_state, self._source.add)
        self._events.note(*applied)
        unwanted = (
            [row for row in self.suite_state.rows.values() if row.unwanted] if applied else ()
        )
        self._events.note(
            *(
                never_begun(row, "Cancelled", FailureClass.CANCELLED)
                for row in unwanted
                if row.state is StepState.QUEUED
            )
        )
        for row in unwanted:
            if row.started is not None:
                self._stop(row, "Cancelled")

    def _propose(self) -> None:
        """Let the source add trials, if it has more and there is room."""
        while not self._source.is_exhausted:
            if not (block := self._source.more(self._num_wanted())):
                return
            self._events.note(*(Added(trial=trial) for trial in block))

    def _most_to_begin(self) -> int:
        if self._controls.whole.is_paused or self._leaves or self._has_too_many_failures:
            return 0
        limit = self._controls.whole.limit
        if limit is None:
            return len(self._queue)
        return min(max(limit - len(self.suite_state.running), 0), len(self._queue))

    def _summary(self, eta: Eta | None) -> SuiteSummary:
        suite_state = self.suite_state
        best = suite_state.shown_best
        return SuiteSummary(
            total=self._source.total,
            counts={state: count for state, count in suite_state.counts.items() if count},
            paused=self._controls.whole.is_paused,
            running=self._glances.shown(suite_state.running),
            best=best.trial.number if best else None,
            best_value=best.objectives[0] if best else None,
            eta_s=eta and eta.seconds,
            eta_error_s=eta and eta.half_s,
        )

    def _eta(self) -> Eta | None:
        left = partial(self._order.left, self.suite_state, self._glances.done, self._source.total)
        return None if self._controls.whole.is_paused else inform(self._run, "time left", left, Eta)

    def _tell(self) -> None:
        suite_state = self.suite_state
        now = self._summary(self._eta())
        inform(self._run, "summary", partial(write_record, self._run.summary, now))
        done = suite_state.num_ended + sum(
            self._glances.done(row) for row in suite_state.running.values()
        )
        failed = f", {suite_state.num_failed} failed" if suite_state.num_failed else ""
        phase = f"{len(suite_state.running)} running{failed}{', paused' if now.paused else ''}"
        progress = Progress(done=round(done, 2), total=now.total, unit="trials", phase=phase)
        self._context.current = progress
