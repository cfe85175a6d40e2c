"""A lease at one moment: its files, host and job are read in one pass, and what follows is pure."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.batch.job_records import JobView
from headrace.clusters.lease_records import (
    BadNodes,
    Ending,
    HostRecord,
    LeaseInfo,
    LeaseSpec,
    PoolRecord,
    Waiting,
)
from headrace.clusters.lifetime import BY_SIGNAL
from headrace.errors import StepError, UnknownNameError
from headrace.files.atomic import is_there, names_in, read_record, read_text, write_text
from headrace.files.layout import LeaseFolder
from headrace.files.locks import locked_at_once
from headrace.record import Record
from headrace.states import FailureClass, LeaseState

NEVER_STARTED = "The lease was never started, or its folder has gone"

_WELL_S = 5.0
_WAITING_S = 300.0
_BEATS = 3
_USUAL_BEAT_S = 2.0
_LOOKS = 12
_ages: dict[Path, tuple[float, float]] = {}
"""Heartbeats of other machines: the first one that this process has read, and the least age."""

Kind = TypeVar("Kind", bound=Record)


class QueueWait(NamedTuple):
    """What a lease waits for in a queue."""

    why: str = ""
    """Empty if it does not wait."""
    starts_at: float | None = None
    """When it is expected to get nodes, seconds since the epoch; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class LeaseFiles:
    """A lease at one moment."""

    folder: LeaseFolder
    records: Mapping[type[Record], Record | Exception | None] = field(default_factory=dict)
    """Contents of its files by kind; the error of an unreadable one, None of an absent one."""
    host_alive: bool | None = None
    """Whether the host process runs; None if unknown: not started, or on another machine."""
    heartbeat: str | None = None
    silent_s: float = 0.0
    """Seconds since the last heartbeat; without one since the host's start, or the request."""
    job: JobView | None = None
    """The job that gives the machines; None if there is none, the host is well, or has ended."""
    asked_at: float | None = None
    """When the lease was asked for, seconds since the epoch; None if its folder is not there."""
    has_log: bool = False

    @classmethod
    def read(cls, folder: LeaseFolder) -> LeaseFiles:
        """Read a lease that starts, runs, has ended or was removed.

        Side effects: asks the batch system for the job if the host gives no heartbeats.
        """
        names = names_in(folder.path)

        def content(path: Path, kind: type[Kind]) -> Kind | Exception | None:
            return _content(path, kind) if path.name in names else None

        host = content(folder.host, HostRecord)
        process = host.process if isinstance(host, HostRecord) else None
        is_alive = process.is_alive if process is not None and process.is_here else None
        heartbeat = read_text(folder.heartbeat) if folder.heartbeat.name in names else None
        asked_at = folder.spec.stat().st_mtime if folder.spec.name in names else None
        began_at = host.started_at if isinstance(host, HostRecord) else asked_at or 0.0
        silent_s = time.time() - began_at
        if heartbeat is not None:
            silent_s = _silence_s(folder, heartbeat, host_is_here=is_alive is True)
        others: dict[type[Record], Path] = {
            Ending: folder.closed,
            LeaseSpec: folder.spec,
            LeaseInfo: folder.info,
            PoolRecord: folder.pool,
            BadNodes: folder.bad_nodes,
            JobView: folder.cause,
        }
        found = cls(
            folder=folder,
            records={HostRecord: host, **{kind: content(others[kind], kind) for kind in others}},
            host_alive=is_alive,
            heartbeat=heartbeat,
            silent_s=silent_s,
            asked_at=asked_at,
            has_log=folder.log.name in names,
        )
        is_well = host is not None and is_alive is not False and silent_s < _WELL_S
        # the host writes its end as its last act, which may have been after the folder was read
        found = found if is_well else found.with_end_of_now()
        if is_well or found.records[Ending] is not None:
            return found
        found = replace(found, job=_job(found))
        is_ended = found.job is not None and found.job.is_ended
        return found.with_end_of_now() if is_ended else found

    def with_end_of_now(self) -> LeaseFiles:
        """Return this with the lease's end as recorded by now."""
        if self.records.get(Ending) is not None:
            return self
        ending = _content(self.folder.closed, Ending)
        return replace(self, records={**self.records, Ending: ending})

    def get(self, kind: type[Kind]) -> Kind | None:
        """Return a file's content, None if absent; raise StepError or OSError if it is unusable."""
        found = self.records.get(kind)
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, kind) else None

    @property
    def spec(self) -> LeaseSpec:
        """What was asked for; raise UnknownNameError if the lease does not exist."""
        found = self.get(LeaseSpec)
        if found is None:
            where = self.folder.path.parent
            raise UnknownNameError(f"There is no lease '{self.folder.lease_id}' in {where}")
        return found

    def state(self, lost_after_s: float | None = None) -> LeaseState:
        """Return the state of the lease.

        Without a heartbeat for `lost_after_s`, by default the lease's own time, it counts as lost.
        Before a lease is ended for that, its heartbeats are read again: `sure_states`.
        """
        ending, host = self.get(Ending), self.get(HostRecord)
        if ending is not None:
            return ending.state
        if self.job is not None and self.job.is_ended:
            refused = self.job.failure_class is FailureClass.USER_ERROR
            return LeaseState.FAILED if refused else LeaseState.LOST
        if self.job is not None and host is None:
            return LeaseState.STARTING
        if lost_after_s is None:
            lost_after_s = asked.lost_after_s if (asked := self.get(LeaseSpec)) else 0.0
        if self.host_alive is False or self.silent_s > lost_after_s:
            return LeaseState.LOST
        return LeaseState.STARTING if self.records.get(LeaseInfo) is None else LeaseState.READY

    def wait(self, *, for_more: bool = False) -> QueueWait:
        """Return what the lease waits for in a queue while it has no nodes.

        With `for_more`, a pool that has some may wait for more nodes.
        """
        if self.get(Ending) is not None:
            return QueueWait()
        pool = self.get(PoolRecord)
        if pool is not None:
            is_waiting = pool.waits_for and (for_more or not pool.num_here)
            return QueueWait(pool.waits_for, pool.starts_at) if is_waiting else QueueWait()
        has_begun = self.records.get(LeaseInfo) or self.get(HostRecord)
        if has_begun or self.job is None or self.job.is_ended:
            return QueueWait()
        return QueueWait(self.job.why, self.job.starts_at)

    @property
    def why_ended(self) -> str:
        """Why the lease has ended, for the user; empty while it lives."""
        ending, host, log = self.get(Ending), self.get(HostRecord), self.folder.log
        if ending is not None:  # the batch system may know the cause
            cause = self.get(JobView) if self.ended_by_itself else None
            is_known = cause is None or ending.reason.startswith(cause.why)
            return ending.reason if cause is None or is_known else cause.why
        if self.get(LeaseSpec) is None:
            return NEVER_STARTED
        if self.state().is_active:
            return ""
        if self.job is not None and self.job.is_ended:
            return f"{self.job.why}; see {log}" if self.has_log else self.job.why
        if host is None:
            return f"The host process never reported; see {log}"
        name = f"process {host.process.pid} on {host.process.host}"
        if self.host_alive is False:
            return f"The lease's host ({name}) died; see {log}"
        return f"The lease's host ({name}) gave no heartbeat for {self.silent_s:.0f} s"

    @property
    def ended_by_itself(self) -> bool:
        """Whether the lease has ended without a request of headrace, so that there is a cause."""
        ending = self.get(Ending)
        return ending is not None and (
            ending.state is LeaseState.LOST or ending.reason.startswith(BY_SIGNAL)
        )

    @property
    def is_certain(self) -> bool:
        """Whether there is more evidence of an end than silence."""
        has_ended = self.get(Ending) is not None or (self.job is not None and self.job.is_ended)
        return has_ended or self.host_alive is False


def write_heartbeat(folder: LeaseFolder) -> None:
    """Write a heartbeat: the time of day, and of a clock that is never set."""
    write_text(folder.heartbeat, f"{time.time():.3f} {time.monotonic():.3f}\n")


def last_heartbeat(folder: LeaseFolder) -> float | None:
    """Return when the host gave the last heartbeat, by its own clock, seconds since the epoch."""
    text = read_text(folder.heartbeat)
    return None if text is None else _times(folder, text)[0]


def sure_state(folder: LeaseFolder, lost_after_s: float) -> LeaseState:
    """Return the state of a lease; see `sure_states`."""
    return sure_states({folder: lost_after_s})[folder]


def sure_states(leases: Mapping[LeaseFolder, float]) -> dict[LeaseFolder, LeaseState]:
    """Return the states of leases; a silent one is lost only if no heartbeat comes in time.

    Waits for the time of some heartbeats, once for all leases, and only if one of them is silent.
    """
    files = {folder: LeaseFiles.read(folder) for folder in leases}
    states = {each: found.state(leases[each]) for each, found in files.items()}
    lost = [each for each in leases if states[each] is LeaseState.LOST]
    silent = [each for each in lost if not files[each].is_certain]
    specs = [files[each].get(LeaseSpec) for each in silent]
    beat_s = max((spec.heartbeat_s if spec else _USUAL_BEAT_S for spec in specs), default=0.0)
    for _ in range(_LOOKS):
        alive = [each for each in silent if _is_alive(files[each], leases[each])]
        states |= dict.fromkeys(alive, LeaseState.STARTING)
        silent = [each for each in silent if each not in alive]
        if not silent:
            break
        _wait(_BEATS * beat_s / _LOOKS)
    return states | {each: LeaseFiles.read(each).state(leases[each]) for each in silent}


def _is_alive(before: LeaseFiles, lost_after_s: float) -> bool:
    now = LeaseFiles.read(before.folder)
    if now.heartbeat is not None and now.heartbeat != before.heartbeat:  # by whatever clock
        return True
    return now.state(lost_after_s).is_active or _is_being_started(before.folder)


def _is_being_started(folder: LeaseFolder) -> bool:
    """Whether a process of this or another machine is about to submit its job, or to start it."""
    if is_there(folder.host) or is_there(folder.job) or not is_there(folder.start_lock):
        return False
    handle = locked_at_once(folder.start_lock)
    if handle is None:
        return True
    os.close(handle)
    return False


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def _silence_s(folder: LeaseFolder, heartbeat: str, *, host_is_here: bool) -> float:
    """Return the seconds since a heartbeat.

    For a host of this machine, the clock counts that is never set, and that stands still while the
    machine sleeps, as the host does. The clock of another machine may be wrong: once this process
    has read two of its heartbeats, silence is how much older the last is than the newest was.
    """
    at, ticked_s = _times(folder, heartbeat)
    if host_is_here:
        return time.monotonic() - ticked_s
    age_s = time.time() - at
    first, least_s = _ages.get(folder.heartbeat, (at, age_s))
    least_s = min(least_s, age_s)
    _ages[folder.heartbeat] = first, least_s
    return age_s if at == first else age_s - least_s


def _times(folder: LeaseFolder, heartbeat: str) -> tuple[float, float]:
    try:
        at, ticked_s = map(float, heartbeat.split())
    except ValueError as error:
        where = folder.heartbeat
        raise StepError(f"{where} does not hold a heartbeat: {heartbeat[:80]!r}") from error
    return at, ticked_s


def _content(path: Path, kind: type[Kind]) -> Kind | Exception | None:
    try:
        return read_record(path, kind)
    except (StepError, OSError) as error:
        return error


def _job(files: LeaseFiles) -> JobView | None:
    """Return the lease's job; if it has none yet, what it waits for while it is asked for."""
    asked = files.get(LeaseSpec)
    if asked is None:
        return None
    if is_there(files.folder.job):
        from headrace.clusters import lease_machines  # batch systems take time to import

        job = lease_machines.job_of(files.folder, asked)
        if job is not None:
            return job
    waiting = read_record(files.folder.waiting, Waiting)
    if waiting is None or time.time() - waiting.at > _WAITING_S:
        return None
    return JobView(is_ended=False, why=waiting.reason)
