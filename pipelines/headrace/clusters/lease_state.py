"""What is seen of a lease, and what follows from it: from its files, its host and its job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.batch.job_records import JobView
from headrace.clusters.backends import launcher_for
from headrace.clusters.lease_records import Ending, HostRecord, LeaseSpec, Waiting
from headrace.errors import StepError
from headrace.files.atomic import is_there, read_record, read_text, refresh_directory, write_text
from headrace.files.layout import LeaseFolder
from headrace.files.locks import locked_at_once
from headrace.states import FailureClass, LeaseState

_WELL_S = 5.0
_WAITING_S = 300.0
_BEATS = 3
_USUAL_BEAT_S = 2.0
_LOOKS = 12
_ages: dict[Path, tuple[float, float]] = {}
"""Of heartbeats from elsewhere: the first that this process saw, and the least age of any."""


@dataclass(frozen=True, kw_only=True)
class LeaseStatus:
    """What the files of a lease, and a look at its host process, tell."""

    ending: Ending | None
    """How it ended; None while nobody wrote that down."""
    host_alive: bool | None
    """Whether the host runs; None when it is not known: not started, or on another machine."""
    silent_s: float
    """Seconds since the last sign of life: heartbeat, the host's report, or else the request."""
    is_ready: bool
    """Whether the machines were there."""
    has_host: bool = True
    """Whether a host has ever reported."""
    job: JobView | None = None
    """What the batch system says; None when there is none, or the host is well."""

    @property
    def is_certain(self) -> bool:
        """Whether it tells more of an end than silence does."""
        has_ended = self.ending is not None or (self.job is not None and self.job.is_ended)
        return has_ended or self.host_alive is False


def decide(status: LeaseStatus, lost_after_s: float) -> LeaseState:
    """State of a lease whose silence of `lost_after_s` counts as loss; a pure function."""
    if status.ending is not None:
        return status.ending.state
    if status.job is not None and status.job.is_ended:
        refused = status.job.failure_class is FailureClass.USER_ERROR
        return LeaseState.FAILED if refused else LeaseState.LOST
    if status.job is not None and not status.has_host:
        return LeaseState.STARTING
    if status.host_alive is False or status.silent_s > lost_after_s:
        return LeaseState.LOST
    return LeaseState.READY if status.is_ready else LeaseState.STARTING


def lease_status(folder: LeaseFolder) -> LeaseStatus:
    """What is seen of a lease now."""
    # before `closed`, which the host writes as its last act
    is_alive = host_alive(folder)
    has_host = is_there(folder.host)
    silent_s = silence_s(folder, host_is_here=is_alive is True)
    is_well = has_host and is_alive is not False and silent_s < _WELL_S
    return LeaseStatus(
        job=None if is_well or is_there(folder.closed) else _job(folder),
        ending=read_record(folder.closed, Ending),
        host_alive=is_alive,
        silent_s=silent_s,
        is_ready=is_there(folder.info),
        has_host=has_host,
    )


def _job(folder: LeaseFolder) -> JobView | None:
    """The lease's job; of one that has none yet, what it waits for while somebody asks for it."""
    asked = read_record(folder.spec, LeaseSpec)
    if asked is None:
        return None
    job = launcher_for(asked.role.backend).job(folder, asked)
    if job is not None:
        return job
    waiting = read_record(folder.waiting, Waiting)
    if waiting is None or time.time() - waiting.at > _WAITING_S:
        return None
    return JobView(is_ended=False, why=waiting.reason)


def host_alive(folder: LeaseFolder) -> bool | None:
    """Whether the host of a lease runs; None where that is not known."""
    host = read_record(folder.host, HostRecord)
    if host is None or not host.process.is_here:
        return None
    return host.process.is_alive


def write_heartbeat(folder: LeaseFolder) -> None:
    """Write a heartbeat: the time of day, and of a clock that nobody sets."""
    write_text(folder.heartbeat, f"{time.time():.3f} {time.monotonic():.3f}\n")


def last_heartbeat(folder: LeaseFolder) -> float | None:
    """When the host gave the last heartbeat, by its own clock, seconds since the epoch."""
    found = _heartbeat(folder)
    return None if found is None else found[0]


def silence_s(folder: LeaseFolder, *, host_is_here: bool) -> float:
    """Seconds since the last sign of life: heartbeat, the host's report, or else the request.

    For a host of this machine the clock counts that nobody sets, and that stands still while the
    machine sleeps, as the host does. The clock of another machine may be wrong: once this process
    has seen two of its heartbeats, silence is how much older the last is than the newest was.
    """
    found = _heartbeat(folder)
    if found is not None:
        at, ticked_s = found
        return time.monotonic() - ticked_s if host_is_here else _age_s(folder.heartbeat, at)
    host = read_record(folder.host, HostRecord)
    if host is not None:
        return time.time() - host.started_at
    return time.time() - (folder.spec.stat().st_mtime if is_there(folder.spec) else 0.0)


def _age_s(file: Path, at: float) -> float:
    age_s = time.time() - at
    first, least_s = _ages.get(file, (at, age_s))
    least_s = min(least_s, age_s)
    _ages[file] = first, least_s
    return age_s if at == first else age_s - least_s


def _heartbeat(folder: LeaseFolder) -> tuple[float, float] | None:
    text = read_text(folder.heartbeat)
    if text is None:
        return None
    try:
        at, ticked_s = map(float, text.split())
    except ValueError as error:
        raise StepError(f"{folder.heartbeat} does not hold a heartbeat: {text[:80]!r}") from error
    return at, ticked_s


def sure_state(folder: LeaseFolder, lost_after_s: float) -> LeaseState:
    """How the lease stands, for whoever would end it; see `sure_states`."""
    return sure_states({folder: lost_after_s})[folder]


def sure_states(leases: Mapping[LeaseFolder, float]) -> dict[LeaseFolder, LeaseState]:
    """How leases stand; a silent one counts as lost only when the time of more beats brings none.

    Waits for that time, once for all of them, and only if one of them is silent.
    """
    statuses = {folder: lease_status(folder) for folder in leases}
    states = {each: decide(statuses[each], leases[each]) for each in leases}
    silent = {
        each: read_text(each.heartbeat)
        for each, state in states.items()
        if state is LeaseState.LOST and not statuses[each].is_certain
    }
    pause_s = _BEATS * max(map(_beat_s, silent), default=0.0) / _LOOKS
    for _ in range(_LOOKS):
        alive = [each for each, beat in silent.items() if _gives_a_sign(each, leases[each], beat)]
        states |= dict.fromkeys(alive, LeaseState.STARTING)
        silent = {each: beat for each, beat in silent.items() if each not in alive}
        if not silent:
            break
        _wait(pause_s)
    return states | {each: decide(lease_status(each), leases[each]) for each in silent}


def _gives_a_sign(folder: LeaseFolder, lost_after_s: float, known_beat: str | None) -> bool:
    refresh_directory(folder.path)
    beat = read_text(folder.heartbeat)
    if beat is not None and beat != known_beat:  # by whatever clock
        return True
    return decide(lease_status(folder), lost_after_s).is_active or _is_being_started(folder)


def _is_being_started(folder: LeaseFolder) -> bool:
    """Whether a process of this or another machine is about to submit its job, or to start it."""
    if is_there(folder.host) or is_there(folder.job) or not is_there(folder.start_lock):
        return False
    handle = locked_at_once(folder.start_lock)
    if handle is None:
        return True
    os.close(handle)
    return False


def _beat_s(folder: LeaseFolder) -> float:
    spec = read_record(folder.spec, LeaseSpec)
    return _USUAL_BEAT_S if spec is None else spec.heartbeat_s


def _wait(seconds: float) -> None:
    time.sleep(seconds)
