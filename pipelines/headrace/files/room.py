"""Disks that are used up: how much is free, how it shows, and how it is told."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether an error means that a disk or a quota is used up."""
    return error.errno in _FULL


def full_words(error: OSError, folder: Path) -> str:
    """What a used-up disk or quota means to its user: the file, its file system, what is free.

    Args:
        error: One of which `is_full` is true.
        folder: Where it was about, when the error names no file.
    """
    path = Path(os.fsdecode(error.filename)) if error.filename else folder
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    mount = next(each for each in (there, *there.resolve().parents) if each.is_mount())
    free = f"{free_bytes(there):,} bytes free on {mount}"
    return f"the disk or quota is full: {path} ({free})"


def free_bytes(folder: Path) -> int:
    """Bytes free for this user in the file system of `folder`, which must exist."""
    return shutil.disk_usage(folder).free


def require_room(folder: Path, needed_bytes: int) -> None:
    """Make sure that so many bytes fit into `folder`, which must exist.

    Raises:
        StorageFullError: They do not.
    """
    if free_bytes(folder) < needed_bytes:
        raise _full(folder, needed_bytes)


@contextmanager
def told_when_full(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Run a block that writes so many bytes to a folder.

    Raises:
        StorageFullError: The block met a full disk or quota; names the bytes it takes.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise _full(folder, needed_bytes) from error
        raise


def _full(folder: Path, needed_bytes: int) -> StorageFullError:
    return StorageFullError(
        f"No room in {folder}: {needed_bytes:,} bytes needed, {free_bytes(folder):,} bytes free",
        "Free some space there, or name another `folder` in the site.",
    )
