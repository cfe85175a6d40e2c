"""Which files of the working folder are safe: not writable by other accounts, and never modules.

For `python -m` and `python -c`, Python searches modules in the working folder first: it would run
another account's `dask.py`, or import a user's `signal.py` instead of its own.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from pathlib import Path

CODE = "HEADRACE_CODE"
"""Environment variable: folders on the module path of a user's script, separated by colons."""
FOLDER = "HEADRACE_WORKING_FOLDER"
"""Environment variable: working folder of a user's script."""
SAFE = "import sys; sys.path[:] = filter(None, sys.path); "
"""Begin of code for `python -c`, in any version of Python."""

_RUN = "import runpy; del sys.argv[0]; runpy.run_module(sys.argv[0], None, '__main__', True)"
_START = ("-P", "-m") if sys.version_info >= (3, 11) else ("-c", SAFE + _RUN)


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module as a program; the name is its fifth word."""
    return (sys.executable, "-u", *_START, module, *arguments)


def problem_of(path: Path) -> str:
    """Return why another account could change a path in the working folder; empty if none can.

    All files between the working folder and the path, and behind links, must belong to this
    account or root. Others may write only to folders above it with the sticky bit; a group only if
    it is the private group of the owner: it has the owner's name, and no other member.
    """
    path = (here := Path.cwd()) / path
    try:
        real = path.resolve()
        above = [each for each in path.parents if each.is_relative_to(here)]
        for each in (path, *above, *((real, real.parent) if real != path else ())):
            for found in (each.lstat(), each.stat()):
                is_sticky = each not in (path, real) and found.st_mode & stat.S_ISVTX
                if found.st_uid not in (0, os.getuid()):
                    return f"{each} belongs to another account (uid {found.st_uid})"
                if not stat.S_ISLNK(found.st_mode) and not is_sticky and _is_open(each, found):
                    return f"other accounts may write to {each} ({stat.filemode(found.st_mode)})"
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        return f"{path} cannot be read: {error}"
    return ""


def _is_open(path: Path, found: os.stat_result) -> bool:
    if not found.st_mode & stat.S_IWGRP or found.st_mode & stat.S_IWOTH:
        return bool(found.st_mode & stat.S_IWOTH)
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    is_private = (owner.pw_name, owner.pw_gid) == (group.gr_name, group.gr_gid)
    is_shared = {*group.gr_mem} - {owner.pw_name} or "system.posix_acl_access" in os.listxattr(path)
    return not is_private or bool(is_shared)
