"""Bytes on disk, and removal of files within headrace's own folders."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from headrace.errors import AccessError

LEFT_BY_REMOVALS = ".*.partial"
"""Pattern of folders that `remove` has renamed: the old name and a token stand in between."""

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are


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


def check_removable(path: Path, top: Path) -> None:
    """Raise if a path below `top` must not be removed, or is on a read-only file system.

    `top` is a folder of headrace's; it may be a link, the folders below it may not.

    Raises:
        AccessError: It belongs to another user, cannot be written, or lies behind a link.
    """
    for each in (path, *path.parents[: len(path.relative_to(top).parts) - 1]):
        if each.is_symlink():
            raise AccessError(
                f"{each} is a link where headrace has a folder",
                "Nothing behind it is removed. Put the folder itself there.",
            )
    is_own = path.lstat().st_uid == os.geteuid()
    if not (is_own and os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
        problem = "cannot be written" if is_own else "belongs to another user"
        raise AccessError(f"{path} {problem}", "Nothing of it is removed.")


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, link or folder, if it is there; links in it are not followed.

    A folder is renamed first, so that it is never found in part.
    """
    if path.is_dir() and not path.is_symlink():
        aside = path.with_name(f".{path.name.lstrip('.')}.{secrets.token_hex(4)}.partial")
        shutil.rmtree(path.rename(aside), ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)
