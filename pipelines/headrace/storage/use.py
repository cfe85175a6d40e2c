"""Who uses a staged copy: what is in use is never evicted.

A use is a shared lock on a file beside the copy. The kernel lets go of it when its holder dies;
the file's time of change, renewed once a minute, keeps the copy for a while longer, so that a
training that is started again finds its data.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.storage.locks import locked, locked_at_once

KEPT_S = 600.0
"""Seconds that a copy is kept after its last use, while others can be evicted."""

_RENEW_S = 60.0


@contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Keep a copy from being evicted while the block runs; waits while it is being evicted.

    Args:
        file: The copy's file for this, on storage of this node; created when missing.
    """
    handle = locked(file, shared=True)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(handle, ended), daemon=True)
    try:
        os.utime(handle)  # of the file that is locked, also when somebody has removed its name
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            os.utime(handle)
    finally:
        os.close(handle)


@contextmanager
def out_of_use(file: Path) -> Iterator[bool]:
    """Keep others from using a copy while the block runs; never waits.

    Yields:
        Whether it is so; False when it is in use.
    """
    handle = locked_at_once(file)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def last_used_at(file: Path) -> float:
    """When a copy was used last, seconds since the epoch; 0 when never."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def idle_s(file: Path) -> float:
    """Seconds since the last use of a copy."""
    return max(time.time() - last_used_at(file), 0.0)


@contextmanager
def at_once(file: Path) -> Iterator[bool]:
    """Hold a lock file while the block runs, if nobody else holds it; never waits.

    Yields:
        Whether it is held.
    """
    lock = FileLock(file, mode=0o600, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _renew(handle: int, ended: threading.Event) -> None:
    while not ended.wait(_RENEW_S):
        os.utime(handle)
