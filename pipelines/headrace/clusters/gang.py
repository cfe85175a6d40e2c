"""Dask clusters of a gang: scheduler and first node in the host process, one member per node."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from headrace.batch.job_records import JOB_STARTED
from headrace.batch.queue_state import read_state, state_file
from headrace.batch.system import system_of
from headrace.clusters import preflight
from headrace.clusters.lease_client import GAVE_UP, request_close
from headrace.clusters.lease_machines import own_jobs
from headrace.clusters.lease_records import BadNodes, LeaseSpec
from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.scheduler import LeaseScheduler, NodeTimes, address, make_keys, prepare
from headrace.clusters.worker import GangNode, name_of, open_node
from headrace.errors import LeaseError
from headrace.files.atomic import is_there, write_json, write_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role

_POLL_S = 0.05
_CLOSE_TIMEOUT_S = 15.0
_REJOIN = 2  # restarted workers join sooner; multiple of the silence that counts as loss


class GangCluster:
    """An open gang, in its host process; see `OpenCluster`."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec, scheduler: LeaseScheduler) -> None:
        self._folder = folder
        self._spec = spec
        self._lacking_since_s: float | None = None
        self.scheduler = scheduler
        self._first: GangNode | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._reports: tuple[preflight.NodeReport, ...] = ()

    async def wait_for_nodes(self) -> None:
        """Start the first node and wait for all."""
        role = self._spec.role
        try:
            await asyncio.wait_for(self._join(), role.start_timeout)
        except TIMED_OUT as error:
            here = {str(each.name) for each in self.scheduler.workers.values()}
            missing = self._blame_missing(role, here)
            raise LeaseError(
                f"{len(here)} of {role.nodes} nodes joined "
                f"within {role.start_timeout:g} s{missing}{self._late(here)}",
                "Raise the role's start_timeout, or request fewer nodes.",
            ) from error

    async def _join(self) -> None:
        spec = self._spec
        examining = asyncio.create_task(
            asyncio.to_thread(preflight.examine, self._folder, spec, index=0)
        )
        await self._until(examining.done)
        preflight.require_good(self._folder, [examining.result()])
        self._first = await open_node(self._folder, spec, 0, str(self.scheduler.address))
        self._keeping = asyncio.create_task(self._first.keep())
        await self._until(lambda: len(self.scheduler.workers) >= spec.role.nodes)
        preflight.require_good(self._folder, self._with_clocks())

    async def _until(self, is_done: Callable[[], bool]) -> None:
        """Wait; raise if a node reports a problem."""
        poll_s, pauses_s = 0.0, preflight.pauses_s()
        while not is_done():
            if self._keeping is not None and self._keeping.done():
                self._keeping.result()
            if time.monotonic() > poll_s:
                poll_s = time.monotonic() + next(pauses_s)
                self._reports = preflight.reports(self._folder, self._reports)
                preflight.require_good(self._folder, self._reports)
            await asyncio.sleep(_POLL_S)

    def _with_clocks(self) -> list[preflight.NodeReport]:
        """Return the nodes' reports, with the differences of their clocks from this one."""
        states = self.scheduler.workers.values()
        skews_s = {str(each.name): float(each.time_delay) for each in states}
        found = preflight.reports(self._folder, self._reports)
        return [preflight.skewed(each, skews_s.get(name_of(each.index), 0.0)) for each in found]

    def _late(self, here: set[str]) -> str:
        """Return, for users, which nodes have reported but not joined."""
        found = preflight.reports(self._folder)
        late = [each.node for each in found if name_of(each.index) not in here]
        return f"; {', '.join(late)} reported and did not join" if late else ""

    def _blame_missing(self, role: Role, here: set[str]) -> str:
        """Record missing nodes, for the next lease to avoid; return them for users, if known."""
        system = system_of(role)
        nodes = system.job_nodes(os.environ) or self._reported_nodes(system.queue)
        missing = tuple(name for i, name in enumerate(nodes) if name_of(i) not in here)
        if not missing:
            return ""
        why = f"no worker came from {', '.join(missing)}"
        timeout = f"{why} in {role.start_timeout:g} s"
        write_record(self._folder.bad_nodes, BadNodes(nodes=missing, why=timeout))
        return f"; {why}"

    def _reported_nodes(self, queue: str) -> tuple[str, ...]:
        """Return the job's nodes from the control side's records, the first task's first."""
        known = read_state(state_file(self._folder.path.parent, queue)).jobs
        (job_id,) = own_jobs(self._spec)
        return known[job_id].nodes if job_id in known else ()

    def check(self) -> None:
        """Raise if lost nodes do not come back; queues end the whole job, others only here."""
        num_here, now_s = len(self.scheduler.workers), time.monotonic()
        if num_here >= self._spec.role.nodes:
            self._lacking_since_s = None
            return
        if self._lacking_since_s is None:  # measured from here: this process may have been halted
            self._lacking_since_s = now_s
        lacking_s = now_s - self._lacking_since_s
        if lacking_s > _REJOIN * self._spec.lost_after_s:
            raise LeaseError(
                f"{num_here} of {self._spec.role.nodes} nodes of the gang have been left "
                f"for {lacking_s:.0f} s",
                "Its work continues in another gang.",
            )

    async def close(self) -> None:
        """End all workers and the scheduler; members end with it."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._first is not None:
            await self._first.close()
        await asyncio.wait_for(self.scheduler.close(), _CLOSE_TIMEOUT_S)


async def open_gang(folder: LeaseFolder, spec: LeaseSpec) -> GangCluster:
    """Open a gang; called in the first task of its job.

    Side effects: sets Dask's configuration and the environment of this process, which the worker
    inherits; writes key, certificate and scheduler file into the lease's folder.
    """
    prepare(folder, spec)
    host = address(spec.role.batch.interface)
    scheduler = await LeaseScheduler(host=host, port=0, protocol="tls", security=make_keys(folder))
    since = float(os.environ.get(JOB_STARTED, time.time()))
    scheduler.add_plugin(NodeTimes(folder, map(name_of, range(spec.role.nodes)), since))
    cluster = GangCluster(folder, spec, scheduler)
    try:
        if spec.role.batch.preflight == "full":
            preflight.offer_meeting(folder, host)
        write_json(folder.scheduler_file, scheduler.identity())  # members wait for it
        await cluster.wait_for_nodes()
    except BaseException:
        if is_there(folder.spec):
            request_close(folder, GAVE_UP)  # members check this
        await cluster.close()
        raise
    return cluster
