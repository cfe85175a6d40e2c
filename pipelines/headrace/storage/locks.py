"""Locks between processes, of one node or over shared storage."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.errors import StepError

_POLL_S = 0.2


def locked(path: Path, *, shared: bool = False) -> int:
    """Open a file and lock it; waits while others hold it otherwise.

    Args:
        path: Lock file, on storage of this node; created when missing.
        shared: Others may hold it so, too.

    Returns:
        File descriptor; the lock ends when it is closed, or with the process.

    Raises:
        OSError: It cannot be created.
    """
    handle = _opened(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except BaseException:
        os.close(handle)
        raise
    return handle


def locked_at_once(path: Path) -> int | None:
    """`locked` for this process alone, without waiting; None when others hold it."""
    handle = _opened(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def exclusive(paths: Iterable[Path]) -> Iterator[None]:
    """Hold lock files while the block runs; waits until every other holder let go.

    The kernel lets go of them when the holder dies. They are taken in one fixed order, so that
    two callers with the same files in other orders do not wait for each other.

    Args:
        paths: Lock files, on storage of this node; created when missing, left behind.

    Raises:
        OSError: A lock file cannot be created.
    """
    with ExitStack() as stack:
        for path in sorted(set(paths)):
            stack.enter_context(FileLock(path, mode=0o600))
        yield


@contextmanager
def exclusive_while(path: Path, check: Callable[[], None]) -> Iterator[bool]:
    """Hold one lock file while the block runs; the wait for it can be given up.

    Args:
        path: Lock file; created when missing, left behind. Its folder must exist.
        check: Called several times a second while another holds the lock; raises to give up.

    Yields:
        Whether somebody else held the lock before.

    Raises:
        StepError: The file system there knows no locks.
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
            raise StepError(
                f"{path} cannot be locked: {error}",
                "The site's `folder` must lie on a file system with locks (flock).",
            ) from error
    try:
        yield waited
    finally:
        lock.release()


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
