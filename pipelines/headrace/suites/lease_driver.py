"""The driver of a suite, or of its part at one site, on the nodes of a lease."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.checkpoints.files import progress_in
from headrace.clusters.cancellable_call import GRACE_S
from headrace.clusters.node_calls import Node
from headrace.clusters.shared_calls import EndedCall, SharedCalls
from headrace.errors import HeadraceError, LeaseEndsError, SiteError, StepError
from headrace.files.atomic import is_there, read_text
from headrace.states import StepState
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepResult
from headrace.suites.driver import SuiteDriver
from headrace.suites.event_log import Journal
from headrace.suites.node_slots import NodeCapacity
from headrace.suites.nodes import Capacity, SuiteNodes
from headrace.suites.points import AssignedTrials, PointSource
from headrace.suites.records import Ended, Started, SuiteSummary, TrialJob, Withdrawn
from headrace.suites.schedule import Placement, place
from headrace.suites.suite_state import TrialState
from headrace.suites.trial_order import Eta
from headrace.suites.trial_policy import LEASE_OVER, ended, folder_of, judge, left_by, result_of

_WAIT_S = 0.2
_STOP_S = GRACE_S + 5.0
_TELLING_S = 1.0
_LOST = "Its driver was lost, and it left no result"
_LEAVES = "Its suite took it back from this site"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a suite on its nodes."""

    dataset: str
    run_trial: Callable[..., StepResult]
    """Given a `TrialJob`, and for a trial on several nodes a fleet of them."""
    capacity: Capacity


class LeaseDriver(SuiteDriver):
    """Runs the trials of a suite on the nodes of its step's lease."""

    def __init__(
        self,
        context: StepContext,
        calls: SharedCalls,
        journal: Journal,
        source: PointSource,
        work: Work,
    ) -> None:
        self._calls, self._work = calls, work
        self._nodes = SuiteNodes(calls, context.recipe, work.capacity)
        self._orphans: dict[int, float] = {}
        super().__init__(context, journal, source, self._nodes)

    def _restore(self) -> None:
        super()._restore()
        here = self._context.lease_folder.lease_id
        until_s = time.monotonic() + _STOP_S
        for number, row in self.suite_state.running.items():
            is_here = row.started is not None and row.started.lease_id == here
            self._orphans[number] = until_s if is_here else 0.0

    def _collect(self) -> None:
        self._take(self._calls.ended(_WAIT_S))

    def _observe(self) -> None:
        self._take(self._nodes.look())
        self._see_to_orphans()

    def _apply_commands(self) -> None:
        super()._apply_commands()
        if isinstance(self._source, AssignedTrials):
            self._source.close(is_closed=self._controls.is_closed)
        leaving = [row for row in self.suite_state.rows.values() if row.leaves]
        for row in leaving:
            if row.started is not None:
                self._stop(row, _LEAVES)
        self._let_go(leaving)

    def _let_go(self, rows: Iterable[TrialState]) -> None:
        """Record that trials which leave, and do not run, have left."""
        left = [row for row in rows if row.leaves and row.state is StepState.QUEUED]
        self._events.note(*(Withdrawn(number=row.trial.number) for row in left))

    def _ask(self) -> None:
        self._nodes.ask_for(self._queue.kinds(), self._most_to_begin())

    def _num_wanted(self) -> int:
        most = min(self._nodes.most_at_once(), self._controls.whole.limit or sys.maxsize)
        return most - len(self.suite_state.running) - len(self._queue)

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
            if isinstance(call.tag, Node):  # it was asked for its capacity
                self._check_software(call.result)
                if self._nodes.joined(call.tag, call.result, call.error):
                    self._events.enqueue()
            elif isinstance(call.tag, int):
                row = self.suite_state.rows[call.tag]
                result = result_of(folder_of(self._run, row), call)
                staged = result.usage is not None and result.usage.staging_s is not None
                self._nodes.release(call.tag, has_staged=staged, is_lost=bool(call.lost))
                entries.append(self._ended(row, result))
        self._events.note(*entries)
        self._let_go([self.suite_state.rows[each.number] for each in entries])  # before a begin

    def _check_software(self, node: NodeCapacity | None) -> None:
        """Refuse a node of a suite's part with other versions than the suite's control side."""
        wanted, name = self._context.spec.inputs.get("software"), self._context.site.name
        if node is not None and wanted not in (None, node.software):
            raise SiteError(
                f"Nodes of site '{name}' have {node.software}; those of this suite need {wanted}",
                f"Install these there, or leave the site out: headrace suite site {name} --leave",
            )

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

    def _stop_attempts(self, why: HeadraceError) -> None:
        is_late = isinstance(why, LeaseEndsError)  # they know that themselves
        until_s = time.monotonic() + (_TELLING_S if is_late else _STOP_S)
        if not is_late:
            for row in self.suite_state.running.values():
                self._stop(row, why.what)
        while self.suite_state.running and time.monotonic() < until_s:
            self._take(self._calls.ended(_WAIT_S))

    def _summary(self, eta: Eta | None) -> SuiteSummary:
        nodes, slots = len(self._nodes.resources), self._nodes.most_at_once()
        return super()._summary(eta).model_copy(update={"slots": slots, "nodes": nodes})
