"""Folders and files that only their owner may use, on machines with several users."""

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
    """Make a folder that only its owner may enter; an existing one is made so.

    In a folder that two accounts share, both may enter; with `keeps`, the second account cannot
    remove files of the first.

    Raises:
        UserError: It belongs to another account, or others may write in headrace's home.
    """
    make_home_of(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = private_folder_mode(folder.parent, keeps=keeps)
    folder.mkdir(mode=mode, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(
            f"{folder} is not a folder of this account (uid {found.st_uid})",
            "Remove it, or ask its owner to remove it.",
        )
    if found.st_mode & _OTHERS & ~mode:
        folder.chmod(mode)


def make_private_file(file: Path) -> None:
    """Make an empty file that only its owner may read and write; see `make_private`."""
    make_home_of(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    tighten(file)


def tighten(file: Path) -> None:
    """Close a file to all but its owner; `UserError` if it is another account's, or not regular."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{file} is not a regular file", "Name another file.")
    if found.st_mode & _OTHERS:
        if os.getuid() not in (found.st_uid, 0):
            raise UserError(
                f"{file} belongs to another account (uid {found.st_uid}), and others may read it",
                f"Ask its owner: chmod 600 {file}",
            )
        file.chmod(0o600)


def make_home_of(path: Path) -> None:
    """Make headrace's home for its owner alone, if the path is in it and it does not exist.

    An existing home keeps its readers; raise `UserError` if others may write in it.
    """
    folder = home()
    if not path.absolute().is_relative_to(folder):
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not found.st_mode & _OTHERS_WRITE:
        return
    if found.st_uid != os.getuid() or found.st_mode & stat.S_ISVTX:
        raise UserError(
            f"Others may write in headrace's home {folder} ({stat.filemode(found.st_mode)})",
            "Set HEADRACE_HOME to a folder of your own.",
        )
    folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
