"""The host process of a lease: `python -m headrace.clusters.host LEASE_DIR [--detach]`.

It opens the cluster, writes heartbeats, runs the steps of the mailbox and ends the lease. It is
independent of Airflow's processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, Protocol

from filelock import FileLock, Timeout

from headrace.batch.job_records import JOB_STARTED
from headrace.clusters import lease_client, lease_machines
from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import Ending, HostRecord, LeaseInfo, LeaseSpec
from headrace.clusters.lifetime import TIMED_OUT, LeaseClock, ends_at, why_close
from headrace.clusters.local import end_marked
from headrace.clusters.services import Services
from headrace.clusters.step_drivers import Drivers, publish_steps
from headrace.errors import HeadraceError, SilentError
from headrace.files.atomic import is_there, read_record, read_text, write_if_possible, write_record
from headrace.files.layout import LeaseFolder
from headrace.files.machine import storage_error
from headrace.processes.identity import ProcessIdentity, set_name, tell_children
from headrace.site_secrets import forget, secrets_of
from headrace.states import LeaseState

logger = logging.getLogger(__name__)

_TICK_S, _SOON_TICK_S = 0.2, 0.05
_SOON_S = 10.0
"""Time after a step's begin or end in which the next step is likely to come."""
_AGAIN = (
    "The batch system started the job a second time. Its work continues in another job: headrace "
    "alone decides what is retried"
)


class OpenCluster(Protocol):
    """An open Dask cluster."""

    scheduler: Any
    """Its `LeaseScheduler`."""

    def check(self) -> None:
        """Raise if the cluster can have no more nodes; called a few times a second."""

    async def close(self) -> None:
        """End all workers and the scheduler."""


async def open_cluster(folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
    """Open a gang with all its nodes, or a pool ready to grow.

    Side effects: writes Dask's scheduler file, key and certificate into the lease's folder.

    Raises:
        LeaseError: Not all nodes of a gang joined in time.
    """
    # the first heartbeat comes before Dask, which takes seconds to load
    if spec.role.is_here:
        from headrace.clusters.local_cluster import open_local

        return await open_local(folder, spec)
    if spec.role.kind == "gang":
        from headrace.clusters.gang import open_gang

        return await open_gang(folder, spec)
    from headrace.clusters.pool import open_pool

    return await open_pool(folder, spec)


class Guard:
    """The host's handle of its guard, a fork: create it before any thread starts.

    The guard holds a pipe from the host. The kernel closes it when the host is killed; then the
    guard ends the host's remaining processes.
    """

    def __init__(self, folder: LeaseFolder) -> None:
        readable, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(folder, readable)
            except Exception:
                logger.exception("The guard failed; `headrace lease reap` ends what is left")
            os._exit(0)
        os.close(readable)

    def dismiss(self) -> None:
        """End the guard: the host has ended everything itself."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)


def _guard(folder: LeaseFolder, readable: int) -> None:
    """Wait for the end of the host, and end its remaining processes."""
    os.setsid()
    set_name("guard")
    os.closerange(3, readable)  # a lock of the host ends with the host
    os.closerange(readable + 1, os.sysconf("SC_OPEN_MAX"))
    os.read(readable, 1)
    num_ended = end_marked(folder)
    logger.warning("The host was killed; ended %d processes that it left", num_ended)
    spec = read_record(folder.spec, LeaseSpec)
    if spec is not None:
        lease_machines.end_leftovers(folder, spec)


class Host:
    """Serves one lease from start to end."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        self._folder = folder
        self._spec = spec
        # copied before the cluster sets variables for workers
        self._drivers = Drivers(folder, {**os.environ, **secrets_of(folder)})
        self._services = Services(folder, spec)
        self._ends_s = time.monotonic() + _ends_at(spec) - time.time()
        self._idle_since_s: float | None = None
        self._num_running, self._changed_s = 0, time.monotonic()
        self._signal_name: str | None = None

    async def serve(self) -> str:
        """Open the lease, serve it, end everything; return why it ended."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, setattr, self, "_signal_name", sig.name)
        beating = asyncio.create_task(keep_heartbeat(self._folder, self._spec))
        self._drivers.warm_up()
        opening = asyncio.create_task(self._open())
        try:
            return await self._watch(opening, beating)
        finally:
            why = read_text(self._folder.close) or "its host failed"
            await asyncio.to_thread(self._drivers.end_all, why)
            await _close(opening)
            await self._services.close()
            beating.cancel()

    async def _open(self) -> OpenCluster:
        await self._services.start()
        return await open_cluster(self._folder, self._spec)

    async def _watch(self, opening: asyncio.Task[OpenCluster], beating: asyncio.Task[None]) -> str:
        is_ready = False
        while True:
            if beating.done():
                beating.result()  # raises: the folder cannot be written any more
            if not is_ready and opening.done():
                self._publish(opening.result())
                is_ready = True
            if is_ready:
                self._check(opening.result())
                self._drivers.check()
                self._note_idle()
            reason = why_close(self._clock())
            if reason is not None:
                logger.info("Closing: %s", reason)
                self._announce_closing(reason)
                return reason
            is_soon = time.monotonic() - self._changed_s < _SOON_S
            await asyncio.sleep(_SOON_TICK_S if is_soon else _TICK_S)

    def _publish(self, cluster: OpenCluster) -> None:
        info = LeaseInfo(
            lease_id=self._spec.lease_id,
            backend=self._spec.role.backend,
            job_ids=lease_machines.own_jobs(self._spec),
            host=ProcessIdentity.of(),
            scheduler_address=str(cluster.scheduler.address),
            dashboard_url=cluster.scheduler.dashboard_url,
            nodes=self._spec.role.nodes,
            ready_at=time.time(),
        )
        self._changed_s = time.monotonic()
        publish_steps(self._folder)
        write_record(self._folder.info, info)
        logger.info("Ready at %s", info.scheduler_address)

    def _check(self, cluster: OpenCluster) -> None:
        try:
            self._services.check()
            cluster.check()
        except HeadraceError as error:
            self._announce_closing(str(error))
            raise

    def _announce_closing(self, reason: str) -> None:
        if is_there(self._folder.spec):  # others must not take the lease for alive
            lease_client.request_close(self._folder, reason)

    def _note_idle(self) -> None:
        if self._drivers.num_running != self._num_running:
            self._num_running, self._changed_s = self._drivers.num_running, time.monotonic()
        if self._num_running:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = time.monotonic()

    def _clock(self) -> LeaseClock:
        owner = self._spec.owner
        gone = owner is not None and owner.is_here and not owner.is_alive
        asked = read_text(self._folder.close)
        return LeaseClock(
            now_s=time.monotonic(),
            ends_s=self._ends_s,
            idle_since_s=self._idle_since_s,
            lifetime_s=self._spec.role.lifetime_s,
            idle_stop_s=self._spec.role.idle_stop,
            # after `GAVE_UP` comes the error of `open_cluster`
            asked=None if asked == lease_client.GAVE_UP else asked,
            lost_owner=f"process {owner.pid} on {owner.host}" if owner and gone else None,
            is_removed=not is_there(self._folder.spec),
            signal_name=self._signal_name,
        )


async def keep_heartbeat(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Write heartbeats until the lease's folder is removed.

    A disk that is full for a moment does not end the lease: others still count it as alive.

    Raises:
        OSError: No write succeeded for so long that the lease counts as lost.
    """
    written_s = time.monotonic()
    while is_there(folder.spec):
        try:
            await asyncio.to_thread(write_heartbeat, folder)
            written_s = time.monotonic()
        except OSError as error:
            if time.monotonic() - written_s > spec.lost_after_s:
                raise
            logger.warning("The heartbeat was not written, trying again: %s", error)
        await asyncio.sleep(spec.heartbeat_s)


def _ends_at(spec: LeaseSpec) -> float:
    return ends_at(spec.role.lifetime_s, time.time(), os.environ.get(JOB_STARTED))


async def _close(opening: asyncio.Task[OpenCluster]) -> None:
    if not opening.done():
        opening.cancel()
    try:
        cluster = await opening
    except (asyncio.CancelledError, HeadraceError):
        return  # nothing was opened; any error is raised elsewhere
    try:
        await cluster.close()
    except (OSError, *TIMED_OUT):
        logger.warning("The cluster did not close in order; its processes are killed")


def serve(folder: LeaseFolder) -> None:
    """Serve the lease in `folder`, unless another host does or it has ended.

    Side effects: writes a heartbeat and `host.json` first, and `closed` last.
    """
    lock = FileLock(folder.lock, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("Another host serves this lease")
        return
    if is_there(folder.closed):
        return
    if is_there(folder.host) and JOB_STARTED in os.environ:
        logger.error(_AGAIN)
        lease_client.request_close(folder, _AGAIN)
        write_record(folder.closed, Ending(state=LeaseState.LOST, reason=_AGAIN))
        return
    spec = read_record(folder.spec, LeaseSpec)
    until = None if spec is None else _ends_at(spec)
    write_heartbeat(folder)  # first: a host with `host.json` always has a heartbeat
    write_record(folder.host, HostRecord(process=ProcessIdentity.of(), ends_at=until))
    ending = _serve_to_the_end(folder)
    forget(folder)
    if is_there(folder.spec):
        write_if_possible(folder.closed, ending)


def _serve_to_the_end(folder: LeaseFolder) -> Ending:
    spec: LeaseSpec | None = None
    guard = Guard(folder)
    try:
        spec = lease_client.spec(folder)
        reason = asyncio.run(Host(folder, spec).serve())
        ending = Ending(state=LeaseState.CLOSED, reason=reason)
    except HeadraceError as error:
        logger.error("The lease failed: %s", error)  # noqa: TRY400 - for users, without a trace
        ending = Ending(state=LeaseState.FAILED, reason=str(error))
    except Exception as error:
        logger.exception("The host failed")
        named = storage_error(error, folder.path) or f"{type(error).__name__}: {error}"
        what = f"The host failed: {named}\n  See {folder.log}."
        ending = Ending(state=LeaseState.FAILED, reason=what)
    guard.dismiss()
    try:
        if spec is not None:
            lease_machines.end_leftovers(folder, spec)
    except SilentError as error:  # its nodes end when their scheduler ends
        logger.warning("%s; the next cleanup of the lease searches for its nodes again", error.what)
    return ending


def main(arguments: list[str]) -> NoReturn:
    """Run the host process.

    It exits at the end without the interpreter's shutdown, since all that it held has ended.
    """
    folder = LeaseFolder(Path(arguments[0]).absolute())
    if "--detach" in arguments and os.fork() != 0:
        os._exit(0)
    if "--detach" in arguments:
        os.setsid()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    tell_children()
    serve(folder)
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
