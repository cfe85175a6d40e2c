"""What the working folder may give: files that no other account can change, and no modules.

Python looks for the modules of `python -m` and `python -c` in the working folder first. There, the
`dask.py` of another account would run, and a user's own `signal.py` would replace Python's.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = "HEADRACE_CODE"
"""Environment variable: folders on the module path of a user's script, with colons between."""

SAFE = "import sys; sys.path[:] = filter(None, sys.path); "
"""What code for `python -c`, of any version, begins with."""

RUN = "import runpy; del sys.argv[0]; runpy.run_module(sys.argv[0], None, '__main__', True)"
"""What follows it where Python has no flag -P: runs the module that is named first."""

_START = ("-P", "-m") if sys.version_info >= (3, 11) else ("-c", SAFE + RUN)
_GROUP_WRITES, _OTHERS_WRITE = 0o020, 0o002
_ACL = "system.posix_acl_access"


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module as a program; four words stand before its name."""
    return (sys.executable, "-u", *_START, module, *arguments)


def problem_of(path: Path) -> str:
    """Return why another account could change what lies in the working folder; empty if none can.

    All between the working folder and the path belongs to this account or root, also behind links.
    Others may write only to folders above it with the sticky bit, as /tmp has, and a group only if
    it is the private group of the owner: it has the owner's name, and no other member.
    """
    try:
        return next(_problems(Path.cwd() / path), "")
    except (OSError, RuntimeError) as error:  # the latter of a link that leads to itself
        return f"{path} cannot be read: {error}"


def _problems(path: Path) -> Iterator[str]:
    real, here = path.resolve(), Path.cwd()
    above = [each for each in path.parents if each.is_relative_to(here)]
    for each in (path, *above, *((real, real.parent) if real != path else ())):
        for found in (each.lstat(), each.stat()):
            is_kept = each not in (path, real) and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.getuid()):
                yield f"{each} belongs to another account ({_name(found.st_uid)})"
            elif not (stat.S_ISLNK(found.st_mode) or is_kept) and _is_open(each, found):
                yield f"other accounts may write to {each} ({stat.filemode(found.st_mode)})"


def _is_open(path: Path, found: os.stat_result) -> bool:
    if found.st_mode & _OTHERS_WRITE:
        return True
    if not found.st_mode & _GROUP_WRITES:
        return False
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    is_private = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    others = {*group.gr_mem} - {owner.pw_name}
    return not is_private or bool(others) or _ACL in os.listxattr(path)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
