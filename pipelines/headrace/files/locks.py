"""Locks between processes, on one node or over shared storage; released when the holder ends."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.errors import StepError
from headrace.files.machine import storage_error

KEPT_S = 600.0
"""Seconds that a staged copy stays after its last use, unless only such copies can be evicted."""

_POLL_S = 0.2
_RENEW_S = 60.0


def locked(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Open a file and lock it until the descriptor is closed; raise `BlockingIOError` or wait."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, operation if wait else operation | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def locked_at_once(path: Path) -> int | None:
    """Lock a file exclusively without waiting; None if another process holds it."""
    try:
        return locked(path, wait=False)
    except BlockingIOError:
        return None


@contextmanager
def exclusive(paths: Iterable[Path]) -> Iterator[None]:
    """Hold lock files on storage of this node while the block runs; wait for other holders.

    They are locked in one fixed order, so that two callers with the same files never wait for each
    other. They are created if missing, and stay.
    """
    with ExitStack() as stack:
        for path in sorted(set(paths)):
            stack.enter_context(FileLock(path, mode=0o600))
        yield


@contextmanager
def at_once(path: Path) -> Iterator[bool]:
    """Hold one lock file if it is free; never wait. Yield whether it is held."""
    handle = locked_at_once(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def exclusive_while(path: Path, check: Callable[[], None]) -> Iterator[bool]:
    """Hold one lock file while the block runs; the wait for it can be ended.

    `check` is called several times a second while another process holds the lock; it raises to
    end the wait. The folder must exist. Yields whether another process held the lock before.
    """
    lock = FileLock(path, mode=0o600, timeout=_POLL_S)
    waited = False
    while True:
        try:
            lock.acquire()
            break
        except Timeout:
            waited = True
            check()
        except (OSError, NotImplementedError) as error:
            what = f"{path} cannot be locked: {error}"
            hint = "The site's `folder` must be on a file system with locks (flock)."
            raise storage_error(error, path) or StepError(what, hint) from error
    try:
        yield waited
    finally:
        lock.release()


@contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Protect a staged copy from eviction while the block runs; wait for a running eviction.

    A use is a shared lock on the copy's lock file, which is created if missing; `at_once` on it
    excludes uses. Its modification time, renewed once a minute, protects the copy for a while
    longer, so that a restarted training finds its data.
    """
    handle = locked(file, shared=True)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(handle, ended), daemon=True)
    try:
        os.utime(handle)  # the locked file, even if its name was removed
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            os.utime(handle)
    finally:
        os.close(handle)


def last_used_at(file: Path) -> float:
    """Return when a copy was last used, seconds since the epoch; 0 if never."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def idle_s(file: Path) -> float:
    """Return the seconds since the last use of a copy."""
    return max(time.time() - last_used_at(file), 0.0)


def _renew(handle: int, ended: threading.Event) -> None:
    while not ended.wait(_RENEW_S):
        os.utime(handle)
