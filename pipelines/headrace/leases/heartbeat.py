"""The sign of life of a lease's host: a file with the time, rewritten every few seconds."""

from __future__ import annotations

import time

from headrace.errors import StepError
from headrace.leases.records import HostRecord
from headrace.storage.atomic import read_record, read_text, write_text
from headrace.storage.layout import LeaseFolder


def beat(folder: LeaseFolder) -> None:
    """Write a heartbeat: the time of day, and of a clock that nobody sets.

    Raises:
        OSError: The folder cannot be written.
    """
    write_text(folder.heartbeat, f"{time.time():.3f} {time.monotonic():.3f}\n")


def last_beat(folder: LeaseFolder) -> float | None:
    """When the host gave the last heartbeat, by its own clock, seconds since the epoch."""
    found = _read(folder)
    return None if found is None else found[0]


def silence_s(folder: LeaseFolder, *, host_is_here: bool) -> float:
    """Seconds since the last sign of life: heartbeat, the host's report, or else the request.

    Args:
        folder: The lease.
        host_is_here: Whether its host runs on this machine. Then the clock counts that nobody sets,
            and that stands still while the machine sleeps, as the host does.
    """
    found = _read(folder)
    if found is None:
        return time.time() - _began_at(folder)
    at, ticked_s = found
    return time.monotonic() - ticked_s if host_is_here else time.time() - at


def _began_at(folder: LeaseFolder) -> float:
    """When the host began, before which it cannot be silent; without one, when it was asked for."""
    host = read_record(folder.host, HostRecord)
    if host is not None:
        return host.started_at
    return folder.spec.stat().st_mtime if folder.spec.exists() else 0.0


def _read(folder: LeaseFolder) -> tuple[float, float] | None:
    text = read_text(folder.heartbeat)
    if text is None:
        return None
    try:
        at, ticked_s = map(float, text.split())
    except ValueError as error:
        raise StepError(f"{folder.heartbeat} does not hold a heartbeat: {text[:80]!r}") from error
    return at, ticked_s
