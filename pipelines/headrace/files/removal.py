"""Bytes on disk, and removal of files within headrace's own folders."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import AccessError, StorageError
from headrace.files.machine import storage_error

GOING = ".removed-"
"""Start of the names of folders that are being removed; the old name follows, and a token."""

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def disk_bytes(path: Path | str, counted: set[tuple[int, int]]) -> int:
    """Return the bytes that a file or folder takes on disk; links are not followed.

    A file with several names that is in `counted` takes no more. What is removed meanwhile, or
    cannot be read, counts as 0.
    """
    try:
        found = os.lstat(path)
        num_bytes = found.st_blocks * _BLOCK_BYTES
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                return num_bytes + sum(disk_bytes(each.path, counted) for each in entries)
    except OSError:
        return 0
    if found.st_nlink > 1:
        if (found.st_dev, found.st_ino) in counted:
            return 0
        counted.add((found.st_dev, found.st_ino))
    return num_bytes


def remove(top: Path, name: str, may_go: Callable[[], bool] = lambda: True) -> bool:
    """Remove a file or folder; return False if `may_go` refused, or there was none.

    A folder is first renamed, so that it is never found in part; if the process ends then,
    `finish_removals` removes the rest. `may_go` is asked after that: if it refuses, the folder gets
    its name back.

    Args:
        top: A folder of headrace's; links above it are followed.
        name: The path below it; no part of it may be a link, except that the last is removed as a
            link.
        may_go: Whether it may still be removed.

    Raises:
        AccessError: It belongs to another user, or lies behind a link.
        StorageError: It cannot be removed; a folder that could not be renamed is whole.
    """
    *above, last = Path(name).parts
    try:
        with _opened(top, above) as folder:
            try:
                found = os.lstat(last, dir_fd=folder)
            except FileNotFoundError:
                return False
            _check_own(found, Path(top, name))
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(last, dir_fd=folder)
                return True
            going = f"{GOING}{last.lstrip('.')}-{secrets.token_hex(4)}"
            os.rename(last, going, src_dir_fd=folder, dst_dir_fd=folder)
            if not may_go():
                with suppress(FileExistsError):  # made anew meanwhile
                    os.rename(going, last, src_dir_fd=folder, dst_dir_fd=folder)
                    return False
            _remove_all(going, folder)
    except FileNotFoundError:  # of another removal at the same time
        return False
    except OSError as error:
        error.filename = str(Path(top, name))
        raise storage_error(error, Path(top, name)) or StorageError(str(error)) from error
    return True


def finish_removals(folder: Path) -> int:
    """Remove what removals of ended processes have left in a folder; return the bytes."""
    num_bytes = 0
    for path in left_by_removals(folder):
        num_bytes += disk_bytes(path, set())
        with suppress(FileNotFoundError), _opened(folder, ()) as handle:  # others finish it, too
            _check_own(os.lstat(path.name, dir_fd=handle), path)
            _remove_all(path.name, handle)
    return num_bytes


def left_by_removals(folder: Path) -> list[Path]:
    """Return what removals of ended processes have left in a folder."""
    return [path for path in folder.glob(f"{GOING}*") if not path.is_symlink() and path.is_dir()]


@contextmanager
def _opened(top: Path, below: list[str] | tuple[()]) -> Iterator[int]:
    """Open a folder below another one, where no part of the path may be a link."""
    handle = os.open(os.path.realpath(top), _OPEN)
    try:
        for at, name in enumerate(below, 1):
            found = os.lstat(name, dir_fd=handle)
            if not stat.S_ISDIR(found.st_mode):
                place = Path(top, *below[:at])
                raise AccessError(
                    f"{place} is a link or file where headrace has a folder",
                    "Nothing behind it is removed. Put the folder itself there.",
                )
            handle, before = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=handle), handle
            os.close(before)
        yield handle
    finally:
        os.close(handle)


def _check_own(found: os.stat_result, path: Path) -> None:
    if found.st_uid != os.geteuid():
        raise AccessError(f"{path} belongs to another user (uid {found.st_uid})", "Ask its owner.")


def _remove_all(name: str, folder: int) -> None:
    """Remove a folder; a folder that is replaced by a link meanwhile is not followed."""
    walk = os.fwalk(name, topdown=False, onerror=_refuse, follow_symlinks=False, dir_fd=folder)
    for _, folders, files, handle in walk:
        for each in files:
            os.unlink(each, dir_fd=handle)
        for each in folders:
            is_link = stat.S_ISLNK(os.lstat(each, dir_fd=handle).st_mode)
            (os.unlink if is_link else os.rmdir)(each, dir_fd=handle)
    os.rmdir(name, dir_fd=folder)


def _refuse(error: OSError) -> None:
    raise error
