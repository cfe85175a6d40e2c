"""Grows and shrinks a pool on a batch system: looks, decides (`scaling`), acts, tells."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import Scheduler

from headrace.errors import BatchError, HeadraceError, JobRefusedError, QueueFullError
from headrace.leases.batch.jobs import JobSight, JobState, view_of
from headrace.leases.cluster import demand
from headrace.leases.lifetime import leaving_s
from headrace.leases.pool_jobs import NodeRequest, PoolJobs
from headrace.leases.pool_members import Member, lack, node_jobs
from headrace.leases.records import LeaseSpec, PoolRecord
from headrace.leases.resources import WAITS
from headrace.leases.scaling import (
    Moves,
    Stage,
    Wish,
    moves,
    staying_nodes,
)
from headrace.leases.setbacks import Setbacks
from headrace.leases.timeouts import TIMED_OUT

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_LEAVE_S = 30.0
_SILENCE_S = 30.0
_TURN_S = 2.0
_STAGGER = 0.1


class Scaler:
    """Keeps a pool at the size its clients need.

    Args:
        spec: What was asked for.
        jobs: The pool's jobs.
        scheduler: Its Dask scheduler.
        tell: Takes how the jobs stand, when that has changed.
    """

    def __init__(
        self,
        spec: LeaseSpec,
        jobs: PoolJobs,
        scheduler: Scheduler,
        tell: Callable[[PoolRecord], None],
    ) -> None:
        self._role = spec.role
        self._jobs = jobs
        self._scheduler = scheduler
        self._tell = tell
        self._members: dict[int, Member] = {}
        powerless = f"{jobs.system.name} cannot leave nodes out"
        self._setbacks = Setbacks(spec.exclude, "" if self._role.leaves_nodes_out else powerless)
        self._wanted = 0
        self._surplus_since_s: float | None = None
        self._paused_until_s = 0.0
        self._paused_for = ""
        self._submitting: asyncio.Task[None] | None = None
        self._started_s = time.monotonic()
        self._told = PoolRecord()
        self._first_node_at: float | None = None

    @property
    def failure(self) -> HeadraceError | None:
        """Why there can be no nodes; None as long as there can."""
        return self._setbacks.failure

    async def run(self) -> None:
        """Do so until there can be no nodes."""
        while self.failure is None:
            await self._look()
            await self._lose_hope()
            if self.failure is None:
                await self._act(self._decide())
            await self._publish()
            await asyncio.sleep(_TICK_S)
        await self._publish()  # a refused submit is told, too

    async def close(self) -> None:
        """Let no job start any more; those that run end with the scheduler."""
        self._jobs.stop()
        if self._submitting is not None:
            with suppress(HeadraceError):
                await self._submitting
        waiting = [each.job for each in self._members.values() if each.stage is Stage.QUEUED]
        try:
            await asyncio.to_thread(self._jobs.cancel, waiting)
        except BatchError as error:  # tried again when the lease's leftovers are ended
            logger.warning("%s", error.what)

    async def _look(self) -> None:
        members = list(self._members.values())
        sights = await asyncio.to_thread(self._jobs.sights, [each.job for each in members])
        workers = {str(state.name): state for state in self._scheduler.workers.values()}
        now_s = time.monotonic()
        for member in members:
            member.take(sights[member.job.record.job_id])
            worker = workers.get(member.name)
            if member.sight.state.is_final:
                await self._end(member, worker)
                continue
            member.see(worker, now_s)
            if worker is not None:
                self._first_node_at = self._first_node_at or time.time()
                self._setbacks.see(member, now_s)
        await self._end_overdue(now_s)

    async def _end(self, member: Member, worker: Any) -> None:
        del self._members[member.job.number]
        self._jobs.forget(member.job)
        why = view_of(member.sight, self._jobs.system.name).why
        logger.info("%s: %s", member.name, why)
        if member.leaving_s is None:
            self._setbacks.strike(member, why, self._jobs.last_words(member.job))
        if worker is not None:  # its node has gone without a word; its name is needed again
            await self._scheduler.remove_worker(worker.address, stimulus_id="headrace-job-ended")

    async def _end_overdue(self, now_s: float) -> None:
        for member in list(self._members.values()):
            what = member.overdue(self._role, now_s)
            if not what:
                continue
            logger.warning("The job of %s %s; cancelling it", member.name, what)
            if member.leaving_s is None:
                self._setbacks.strike(member, f"{self._why(member)}; it {what}")
            member.leaving_s = now_s
            await self._cancel([member.job.number])

    async def _lose_hope(self) -> None:
        if any(each.stage.is_here for each in self._members.values()):
            return
        for member in [each for each in self._members.values() if each.is_vain]:
            if not self._setbacks.never_start(member, self._why(member)):
                return
            member.leaving_s = time.monotonic()
            await self._cancel([member.job.number])
        for member in self._setbacks.find_stuck(self._members.values(), time.monotonic()):
            member.leaving_s = time.monotonic()
            await self._cancel([member.job.number])
        self._setbacks.lose_hope()

    def _decide(self) -> Moves:
        now_s = time.monotonic()
        nodes = [member.node(now_s) for member in self._members.values()]
        asked = max(int(self._scheduler.adaptive_target()), demand(self._scheduler))
        self._wanted = min(asked, self._role.nodes)
        if self._wanted >= len(staying_nodes(nodes)):
            self._surplus_since_s = None
        elif self._surplus_since_s is None:
            self._surplus_since_s = now_s
        wish = Wish(
            now_s=now_s,
            nodes=self._wanted,
            most=self._role.nodes,
            keep_s=self._role.keep_nodes,
            surplus_since_s=self._surplus_since_s,
        )
        found = moves(nodes, wish, self._setbacks.faults)
        return found if now_s >= self._paused_until_s else replace(found, submit=0)

    async def _act(self, found: Moves) -> None:
        now_s = time.monotonic()
        for number in (*found.cancel, *found.retire):
            self._members[number].leaving_s = now_s
        if found.cancel:
            self._setbacks.waste()
            await self._cancel(found.cancel)
        if found.retire:
            await self._send_away(found.retire)
        if self._submitting is not None and self._submitting.done():
            self._submitting.result()
            self._submitting = None
        if found.submit and self._submitting is None:
            self._submitting = asyncio.create_task(self._submit(found.submit))

    async def _send_away(self, numbers: Sequence[int]) -> None:
        members = [self._members[number] for number in numbers]
        names = [member.name for member in members]
        logger.info("Sending away %s", ", ".join(names))
        retired = self._scheduler.retire_workers(names=names, close_workers=True, remove=True)
        with suppress(*TIMED_OUT):
            await asyncio.wait_for(retired, _LEAVE_S)
        left = {str(worker.name): worker for worker in self._scheduler.workers.values()}
        for member in members:
            worker = left.get(member.name)
            if worker is None:
                continue
            if not member.node(time.monotonic()).is_old:
                member.leaving_s = None  # it holds what no other node could take
                continue
            logger.info("%s holds what no other node could take; it is made again", member.name)
            await self._scheduler.remove_worker(
                worker.address, stimulus_id="headrace-node-is-old", expected=True
            )

    async def _cancel(self, numbers: Sequence[int]) -> None:
        jobs = [self._members[number].job for number in numbers]
        try:
            await asyncio.to_thread(self._jobs.cancel, jobs)
        except BatchError as error:  # they are overdue later, and cancelled again
            logger.warning("%s", error.what)

    async def _submit(self, count: int) -> None:
        try:
            for _ in range(count):
                await self._submit_one()
        except JobRefusedError as error:
            self._setbacks.refuse(error)
        except QueueFullError as error:
            self._pause(error.what, _TURN_S)
        except BatchError as error:
            logger.warning("%s; trying again later", error.what)
            self._pause(error.what, _SILENCE_S)

    def _pause(self, why: str, seconds: float) -> None:
        self._paused_for = why
        self._paused_until_s = time.monotonic() + seconds

    async def _submit_one(self) -> None:
        free = next(number for number in itertools.count() if number not in self._members)
        left_s = self._started_s + self._role.lifetime_s - time.monotonic()
        life_s = max(min(self._role.node_lifetime or left_s, left_s), 1.0)
        asked_s = time.monotonic()
        self._setbacks.forgive(asked_s)
        exclude = self._setbacks.avoidance.nodes
        request = NodeRequest(number=free, time_limit_s=life_s, exclude=exclude)
        try:
            job = await asyncio.to_thread(self._jobs.submit, request)
        except JobRefusedError as error:
            if not exclude:
                raise
            self._setbacks.take_all_nodes(error.what)
            return
        # staggered, so that nodes started together are not replaced together
        share = 1 - _STAGGER * (job.serial * 0.618 % 1)
        sight = JobSight(job_id=job.record.job_id, state=JobState.PENDING)
        now_s = time.monotonic()
        member = Member(
            job,
            sight,
            asked_s=asked_s,
            retire_s=(life_s - leaving_s(life_s)) * share,
            since_s=now_s,
        )
        self._members[job.number] = member
        logger.info("%s: submitted as job %s", member.name, job.record.job_id)

    async def _publish(self) -> None:
        record = self._record()
        self._scheduler.task_metadata[WAITS] = record.waits_for
        if record != self._told:
            self._told = record
            await asyncio.to_thread(self._tell, record)

    def _record(self) -> PoolRecord:
        members, system = list(self._members.values()), self._jobs.system.name
        avoidance = self._setbacks.avoidance
        return PoolRecord(
            jobs=node_jobs(members, system),
            waits_for=lack(members, self._wanted, system, self._trouble(), avoidance.nodes),
            first_node_at=self._first_node_at,
            ended=self._setbacks.ended,
            avoids=avoidance.avoided,
            takes_all=avoidance.lifted if avoidance.blamed else "",
            failure=self._setbacks.view,
        )

    def _trouble(self) -> str:
        if self._submitting is not None:
            return "a job is being submitted"
        if time.monotonic() < self._paused_until_s:
            return self._paused_for
        setbacks = self._setbacks
        return setbacks.last_end.partition("\n")[0] if setbacks.faults.strikes else ""

    def _why(self, member: Member) -> str:
        return view_of(member.sight, self._jobs.system.name).why
