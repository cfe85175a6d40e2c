"""The driver of a suite: starts attempts where there is room, and records their ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from headrace.checkpoints.files import progress_in
from headrace.clusters.cancellable_call import GRACE_S
from headrace.clusters.shared_calls import EndedCall, SharedCalls
from headrace.errors import (
    HeadraceError,
    LeaseEndsError,
    LeaseLostError,
    StepError,
    SuiteFailedError,
)
from headrace.files.atomic import is_there, read_text, write_record
from headrace.informing import inform
from headrace.recipe.suite import SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.context import StepContext
from headrace.steps.mailbox import Progress, StepResult
from headrace.suites.event_log import EventWriter, Journal, Retention, TakenOverError
from headrace.suites.nodes import AskedNode, Capacity, SuiteNodes
from headrace.suites.points import PointSource
from headrace.suites.records import PRUNED, Added, Ended, Started, TrialJob
from headrace.suites.schedule import Placement, place
from headrace.suites.suite_state import Controls, SuiteState, TrialState
from headrace.suites.trial_order import Eta, trial_order
from headrace.suites.trial_policy import (
    LEASE_OVER,
    Glances,
    ended,
    folder_of,
    judge,
    left_by,
    never_begun,
    result_of,
    summary,
)

AGAIN = "Run them again: headrace suite retry, then headrace resume or clear the task in Airflow."
_WAIT_S = 0.2
_LOOK_EVERY_S = 1.0
_STOP_S = GRACE_S + 5.0
_TELLING_S = 1.0
_LOST = "Its driver was lost, and it left no result"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a suite on its nodes."""

    dataset: str
    run_trial: Callable[..., StepResult]
    """Given a `TrialJob`, and for a trial on several nodes a fleet of them."""
    capacity: Capacity


class Driver:
    """Runs the trials of a suite to their ends; the journal holds all of its state.

    Attributes:
        suite_state: State of the trials.
    """

    def __init__(
        self,
        context: StepContext,
        calls: SharedCalls,
        journal: Journal,
        source: PointSource,
        work: Work,
    ) -> None:
        self._context, self._calls, self._journal = context, calls, journal
        self._source, self._work = source, work
        self._run = context.run_folder
        self._spec = context.recipe.suite or SuiteSpec()
        self._nodes = SuiteNodes(calls, context.recipe, work.capacity)
        self._controls = Controls(self._run, self._spec.max_running)
        self._glances, self._order = Glances(self._run), trial_order(context.recipe)
        suite_state = SuiteState(objectives=context.recipe.objectives)
        keeps = Retention(self._run, self._spec.keep_checkpoints)
        self._events = EventWriter(journal, source, self._nodes, suite_state, keeps)
        self.suite_state, self._queue = self._events.suite_state, self._events.queue
        self._orphans: dict[int, float] = {}
        self._failed_before = 0
        self._leaves = False
        self._looked_s = float("-inf")

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
            self._stop(error)
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
        here = self._context.lease_folder.lease_id
        until_s = time.monotonic() + _STOP_S
        for number, row in self.suite_state.running.items():
            is_here = row.started is not None and row.started.lease_id == here
            self._orphans[number] = until_s if is_here else 0.0

    def _turn(self) -> None:
        self._take(self._calls.ended(_WAIT_S))
        self._propose()  # what is asked before the first turn is asked of these, too
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._look()
        self._begin()

    def _look(self) -> None:
        """Do the work of each second."""
        self._take(self._nodes.look())
        self._see_to_orphans()
        self._apply_commands()
        for row in self._glances.look(self.suite_state.running):
            if self._source.should_prune(row):
                mailbox.request_cancel(folder_of(self._run, row), f"{PRUNED}: it promises little")
        self._leaves = self._leaves or is_there(self._context.lease_folder.notice)
        if self._spec.order == "longest":
            asked = partial(self._order.expected, self.suite_state)
            expected_s = inform(self._run, "forecast for the order", asked, dict)
            if expected_s is not None:
                self._queue.reorder(expected_s)
        self._nodes.ask_for(self._queue.kinds(), self._most_to_begin())
        self._journal.sync_now_and_then()
        self._tell()

    def _see_to_orphans(self) -> None:
        """Record the ends of an earlier driver's attempts, which stop on this lease's nodes."""
        entries = []
        for number, until_s in list(self._orphans.items()):
            row = self.suite_state.rows[number]
            folder = folder_of(self._run, row)
            if is_there(folder.result) or time.monotonic() > until_s:
                del self._orphans[number]
                entries.append(self._ended(row, left_by(folder, _LOST), is_orphan=True))
        self._events.note(*entries)

    def _apply_commands(self) -> None:
        applied = self._controls.apply_commands(self.suite_state, self._source.add)
        self._events.note(*applied)
        unwanted = (
            [row for row in self.suite_state.rows.values() if row.unwanted] if applied else ()
        )
        self._events.note(
            *(
                never_begun(row, time.time(), "Cancelled", FailureClass.CANCELLED)
                for row in unwanted
                if row.state is StepState.QUEUED
            )
        )
        for row in unwanted:
            if row.started is not None:
                mailbox.request_cancel(folder_of(self._run, row), "Cancelled")

    def _propose(self) -> None:
        """Let the source add trials, if it has more and there is room."""
        while not self._source.is_exhausted:
            most = min(self._nodes.most_at_once(), self._controls.limit or sys.maxsize)
            block = self._source.more(most - len(self.suite_state.running) - len(self._queue))
            if not block:
                return
            self._events.note(*(Added(trial=trial) for trial in block))

    def _most_to_begin(self) -> int:
        if self._controls.is_paused or self._leaves or self._has_too_many_failures:
            return 0
        limit = self._controls.limit
        if limit is None:
            return len(self._queue)
        return min(max(limit - len(self.suite_state.running), 0), len(self._queue))

    def _begin(self) -> None:
        is_early = self._orphans or self._nodes.is_asking
        most = 0 if is_early else self._most_to_begin()
        if not most:
            return
        placements = place(self._queue, self._nodes.resources, most)
        for each in placements:
            self._nodes.hold(each)
        self._events.note(*(self._started(each) for each in placements))
        for each in placements:
            nodes = [self._nodes.node(allocation.node.name) for allocation in each.allocations]
            call = (self._work.run_trial, self._job(each))
            if len(nodes) > 1:
                self._calls.begin_across(each.number, nodes, *call)
            else:
                self._calls.begin(each.number, nodes[0], *call)

    def _started(self, placement: Placement) -> Started:
        row, allocations = self.suite_state.rows[placement.number], placement.allocations
        return Started(
            number=placement.number,
            attempt=row.attempts + 1,
            asked_at=row.since,
            node=allocations[0].node.name,
            machines=tuple(allocation.node.machine for allocation in allocations),
            lease_id=self._context.lease_folder.lease_id,
            gpus=sum(len(allocation.gpus) * allocation.share for allocation in allocations),
            cpus=sum(len(allocation.cpus) for allocation in allocations),
            node_share=allocations[0].node_share,
        )

    def _job(self, placement: Placement) -> TrialJob:
        row, allocation = self.suite_state.rows[placement.number], placement.allocations[0]
        limit_s = self._spec.time_limit
        return TrialJob(
            run_folder=str(self._run.path),
            lease_folder=str(self._context.lease_folder.path),
            trial=row.trial,
            attempt=row.attempts,
            dataset=self._work.dataset,
            gpus=allocation.gpus,
            share=allocation.share,
            cpus=allocation.cpus,
            time_limit_s=None if limit_s is None else max(limit_s - row.took_s, 1.0),
        )

    def _take(self, calls: Iterable[EndedCall]) -> None:
        entries = []
        for call in calls:
            if isinstance(call.tag, AskedNode):
                if self._nodes.joined(call.tag.node, call.result, call.error):
                    self._events.enqueue()
            elif isinstance(call.tag, int):
                row = self.suite_state.rows[call.tag]
                result = result_of(folder_of(self._run, row), call)
                staged = result.usage is not None and result.usage.staging_s is not None
                self._nodes.release(call.tag, has_staged=staged, is_lost=bool(call.lost))
                entries.append(self._ended(row, result))
        self._events.note(*entries)

    def _ended(self, row: TrialState, result: StepResult, *, is_orphan: bool = False) -> Ended:
        number, started = row.trial.number, row.started
        if started is None:
            raise StepError(f"Trial {number} has ended, but it had not begun")
        if result.failure is not None and result.failure.error in LEASE_OVER and not is_orphan:
            self._leaves = True
        saved, has_own = self._run.trial(number).checkpoints, self._context.recipe.model is None
        kept = progress_in(saved, own_names=has_own) if result.failure else 0.0
        why = read_text(folder_of(self._run, row).cancel) or ""
        entry = ended(started, result, self.suite_state.objectives, kept)
        return judge(row, entry, self._spec, why, is_orphan=is_orphan)

    def _stop(self, why: HeadraceError) -> None:
        """End running attempts; their trials wait for another driver."""
        is_late = isinstance(why, LeaseEndsError)  # they know that themselves
        until_s = time.monotonic() + (_TELLING_S if is_late else _STOP_S)
        if not is_late:
            for row in self.suite_state.running.values():
                mailbox.request_cancel(folder_of(self._run, row), why.what)
        while self.suite_state.running and time.monotonic() < until_s:
            self._take(self._calls.ended(_WAIT_S))
        self._tell()

    def _tell(self) -> None:
        suite_state = self.suite_state
        total, is_paused = self._source.total, self._controls.is_paused
        left = partial(self._order.left, suite_state, self._glances.done, total)
        eta = None if is_paused else inform(self._run, "time left", left, Eta)
        now = summary(suite_state, self._glances, total, eta, is_paused=is_paused)
        inform(self._run, "summary", partial(write_record, self._run.summary, now))
        done = suite_state.num_ended + sum(
            self._glances.done(row) for row in suite_state.running.values()
        )
        failed = f", {suite_state.num_failed} failed" if suite_state.num_failed else ""
        phase = f"{len(suite_state.running)} running{failed}{', paused' if now.paused else ''}"
        progress = Progress(done=round(done, 2), total=now.total, unit="trials", phase=phase)
        self._context.current = progress
