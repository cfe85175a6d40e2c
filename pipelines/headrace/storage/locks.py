"""Locks between processes of one node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock


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
