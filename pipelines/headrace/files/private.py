"""Folders and files that their owner alone may use, on machines that others use too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.errors import UserError
from headrace.files.sharing import private_folder_mode
from headrace.recipe.home import home

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_private(folder: Path, *, keeps: bool = True) -> None:
    """Make a folder that its owner alone may enter; one that is there becomes so.

    In a folder that two accounts share, both may; one that `keeps` lets the second take nothing
    away that is of the first.

    Raises:
        UserError: It belongs to another account, or others may write in headrace's home.
    """
    make_home_of(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = private_folder_mode(folder.parent, keeps=keeps)
    folder.mkdir(mode=mode, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise UserError(
            f"{folder} is no folder of this account (uid {seen.st_uid})",
            "Remove it, or ask whoever made it to.",
        )
    if seen.st_mode & _OTHERS & ~mode:
        folder.chmod(mode)


def make_private_file(file: Path) -> None:
    """Make an empty file that its owner alone may read and write; as `make_private`."""
    make_home_of(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    tighten(file)


def tighten(file: Path) -> None:
    """Close a file to all but its owner.

    Raises:
        UserError: It belongs to another account, or is no regular file, as `/dev/null`.
    """
    seen = file.stat()
    if not stat.S_ISREG(seen.st_mode):
        raise UserError(f"{file} is no regular file", "Name another file.")
    if seen.st_mode & _OTHERS:
        if os.getuid() not in (seen.st_uid, 0):
            raise UserError(
                f"{file} belongs to another account (uid {seen.st_uid}), and others may read it",
                f"Ask its owner: chmod 600 {file}",
            )
        file.chmod(0o600)


def make_home_of(path: Path) -> None:
    """Make headrace's home for its owner alone, if a path lies in it and it is not there.

    One that is there stays readable to whom it was; when others may write in it, that is a
    `UserError`.
    """
    place = home()
    if not path.absolute().is_relative_to(place):
        return
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = place.stat()
    if not seen.st_mode & _OTHERS_WRITE:
        return
    if seen.st_uid != os.getuid() or seen.st_mode & stat.S_ISVTX:
        raise UserError(
            f"Others may write in headrace's home {place} ({stat.filemode(seen.st_mode)})",
            "Set HEADRACE_HOME to a folder of your own.",
        )
    place.chmod(stat.S_IMODE(seen.st_mode) & ~_OTHERS_WRITE)
