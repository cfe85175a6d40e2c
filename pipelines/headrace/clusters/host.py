"""The host process of a lease: `python -m headrace.clusters.host LEASE_DIR [--detach]`.

It opens the cluster, writes heartbeats, runs the steps of the mailbox and ends the lease. It is
independent of Airflow's processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from headrace.batch.job_records import JOB_STARTED
from headrace.clusters import lease_client
from headrace.clusters.backends import LeaseLauncher, OpenCluster, launcher_for
from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import Ending, HostRecord, LeaseInfo, LeaseSpec
from headrace.clusters.lifetime import TIMED_OUT, LeaseClock, ends_at, why_close
from headrace.clusters.local import Guard
from headrace.clusters.step_drivers import Drivers
from headrace.errors import HeadraceError, SilentError
from headrace.files.atomic import (
    is_there,
    read_bytes,
    read_record,
    read_text,
    write_if_possible,
    write_record,
)
from headrace.files.layout import LeaseFolder
from headrace.files.machine import storage_error
from headrace.processes.identity import ProcessIdentity, tell_children
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


class Host:
    """Serves one lease from start to end."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec, launcher: LeaseLauncher) -> None:
        self._folder = folder
        self._spec = spec
        self._launcher = launcher
        # copied before the cluster sets variables for workers
        self._drivers = Drivers(folder, {**os.environ, **secrets_of(folder)})
        self._ends_s = time.monotonic() + _ends_at(spec) - time.time()
        self._idle_since_s: float | None = None
        self._num_running, self._changed_s = 0, time.monotonic()
        self._signal_name: str | None = None

    async def serve(self) -> str:
        """Open the lease, serve it, end everything; return why it ended."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, self._on_signal, sig)
        beating = asyncio.create_task(keep_heartbeat(self._folder, self._spec))
        self._drivers.warm_up()
        opening = asyncio.create_task(self._launcher.open_cluster(self._folder, self._spec))
        try:
            return await self._watch(opening, beating)
        finally:
            why = read_text(self._folder.close) or "its host failed"
            await asyncio.to_thread(self._drivers.end_all, why)
            await _close(opening)
            beating.cancel()

    def _on_signal(self, sig: signal.Signals) -> None:
        self._signal_name = sig.name

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
            await asyncio.sleep(self._tick_s())

    def _tick_s(self) -> float:
        """Return a short pause soon after the start, or a step's begin or end; else a long one."""
        is_soon = time.monotonic() - self._changed_s < _SOON_S
        return _SOON_TICK_S if is_soon else _TICK_S

    def _publish(self, cluster: OpenCluster) -> None:
        info = LeaseInfo(
            lease_id=self._spec.lease_id,
            backend=self._spec.role.backend,
            job_ids=cluster.job_ids,
            host=ProcessIdentity.of(),
            scheduler_address=cluster.scheduler_address,
            dashboard_url=cluster.dashboard_url,
            nodes=self._spec.role.nodes,
            ready_at=time.time(),
        )
        self._changed_s = time.monotonic()
        publish_steps(self._folder)
        write_record(self._folder.info, info)
        logger.info("Ready at %s", info.scheduler_address)

    def _check(self, cluster: OpenCluster) -> None:
        try:
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
    launcher: LeaseLauncher | None = None
    guard = Guard(folder)
    try:
        spec = lease_client.spec(folder)
        launcher = launcher_for(spec.role.backend)
        reason = asyncio.run(Host(folder, spec, launcher).serve())
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
        if launcher is not None:
            launcher.kill_leftovers(folder)
    except SilentError as error:  # its nodes end when their scheduler ends
        logger.warning("%s; the next cleanup of the lease searches for its nodes again", error.what)
    return ending


def publish_steps(folder: LeaseFolder) -> None:
    """Export the steps of a lease to Prometheus, beside Dask's own metrics of this process.

    Only where the package `prometheus-client` is installed (`headrace[prometheus]`).
    """
    if find_spec("prometheus_client") is None:
        return
    from prometheus_client import REGISTRY

    REGISTRY.register(StepFigures(folder))


class StepFigures:
    """A collector of `prometheus_client`: status of a lease's running steps."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._folder = folder

    def describe(self) -> Iterable[Any]:
        """Return nothing: the metrics are not known in advance."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield gauges, labelled with run and step; each step has its own units, see its status."""
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, meaning: str, *labels: str) -> Any:
            every = ("run", "step", *labels)
            return GaugeMetricFamily(f"headrace_step_{name}", meaning, labels=every)

        done = gauge("done", "Units of work that are done", "unit")
        total = gauge("total", "Units of work in all", "unit")
        left = gauge("eta_seconds", "Time until the end of the step")
        figure = gauge("metric", "Newest value of a metric", "metric")
        for spec, status in self._running():
            of, progress = (spec["run_id"], spec["name"]), status["progress"]
            done.add_metric((*of, progress["unit"]), progress["done"])
            if progress["total"] is not None:
                total.add_metric((*of, progress["unit"]), progress["total"])
            if status["eta_s"] is not None:
                left.add_metric(of, status["eta_s"])
            for name, value in status["metrics"].items():
                figure.add_metric((*of, name), value)
        yield from (done, total, left, figure)

    def _running(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield specs and statuses, as `headrace.steps` writes them."""
        for number in itertools.count(1):
            step = self._folder.step(number)
            if not is_there(step.path):
                return
            spec, status = read_bytes(step.spec), read_bytes(step.status)
            if spec and status and not is_there(step.result) and not is_there(step.exit):
                yield json.loads(spec), json.loads(status)


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
