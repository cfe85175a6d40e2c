"""A root folder for Charliecloud: mount points only, everything in it comes from this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace

MARK = "/etc/headrace-image"
"""A file that is there inside only."""

_POINTS = ("usr", "etc", "tmp", "proc", "sys", "dev", "home")
_LINKS = ("bin", "sbin", "lib", "lib64")


def why_not() -> str:
    """Why this machine cannot run it; empty when it can."""
    if shutil.which("ch-run") is None:
        return "install the Debian package charliecloud"
    return ""


def make_image(folder: Path, *shown: Path) -> Path:
    """Make the root folder.

    Args:
        folder: Where, new.
        shown: Folders of this machine, wherever they lie, that can be seen inside.
    """
    for name in (*_POINTS, *(bind[1:] for bind in binds()), *(str(each)[1:] for each in shown)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in _LINKS:
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    (folder / MARK[1:]).touch()
    return folder


def binds() -> tuple[str, ...]:
    """Folders of this machine in which Python and headrace lie."""
    places = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), _sources()}
    outside = [each for each in places if not each.is_relative_to("/tmp")]
    return tuple(sorted(str(each) for each in outside if not _is_below(each, outside)))


def container(image: Path) -> dict[str, Any]:
    """The site's `container` for that image."""
    return {
        "runtime": "charliecloud",
        "image": str(image),
        "python": sys.executable,
        "binds": binds(),
        "env": {"COLOUR": "inside"},
    }


def starts(image: Path) -> str:
    """Why a container does not start here, such as no user namespaces; empty when it does."""
    command = ["ch-run", "--bind=/usr", str(image), "--", "true"]
    env = {"USER": getpass.getuser(), **os.environ}  # it insists on the variable
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=env
    )
    return ended.stderr if ended.returncode else ""


def _sources() -> Path:
    return Path(headrace.__file__).parents[2]


def _is_below(path: Path, places: list[Path]) -> bool:
    return any(path != each and path.is_relative_to(each) for each in places)
