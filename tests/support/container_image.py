"""A root folder for Charliecloud, a SIF for Apptainer: mount points only.

Everything in it comes from this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.clusters.containers import environment, wrap
from headrace.recipe.batch import Container

MARK = "/etc/headrace-image"
"""A file that is there inside only."""

_POINTS = ("usr", "etc", "tmp", "proc", "sys", "dev", "home")
_LINKS = ("bin", "sbin", "lib", "lib64")


RUNTIMES = {"apptainer": "apptainer", "charliecloud": "ch-run"}
"""Programs of the runtimes."""


def why_not(runtime: str = "charliecloud") -> str:
    """Why this machine cannot run it; empty when it can."""
    if shutil.which(RUNTIMES[runtime]) is None:
        return f"install {runtime}: scripts/system-packages.sh"
    return ""


def make_image(folder: Path, *shown: Path, runtime: str = "charliecloud") -> Path:
    """Make the root folder; for Apptainer, a SIF of it beside it.

    Args:
        folder: Where, new.
        shown: Folders of this machine, wherever they lie, that can be seen inside.
        runtime: Program that is to run it.
    """
    for name in (*_POINTS, *(bind[1:] for bind in binds()), *(str(each)[1:] for each in shown)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in _LINKS:
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    (folder / MARK[1:]).touch()
    if runtime == "charliecloud":
        return folder
    sif = folder.with_suffix(".sif")
    subprocess.run(["apptainer", "--quiet", "build", str(sif), str(folder)], check=True, timeout=60)
    return sif


def binds() -> tuple[str, ...]:
    """Folders of this machine in which Python and headrace lie."""
    places = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), _sources()}
    outside = [each for each in places if not each.is_relative_to("/tmp")]
    return tuple(sorted(str(each) for each in outside if not _is_below(each, outside)))


def container(image: Path, runtime: str = "charliecloud") -> dict[str, Any]:
    """The site's `container` for that image."""
    return {
        "runtime": runtime,
        "image": str(image),
        "python": sys.executable,
        "binds": binds(),
        "env": {"COLOUR": "inside"},
        # root of a machine without all capabilities, as in a container, needs a user namespace
        "options": ("--userns",) if (runtime, os.getuid()) == ("apptainer", 0) else (),
    }


def made(folder: Path, runtime: str) -> dict[str, Any]:
    """The site's `container` of an image made in a folder, which is seen inside.

    Skips the test if no container starts here, as without user namespaces.
    """
    if reason := why_not(runtime):
        pytest.skip(reason)
    image = make_image(folder / "image", folder, folder / "cache", runtime=runtime)
    asked = container(image, runtime)
    # Charliecloud insists on the user's name
    ended = subprocess.run(
        wrap(Container(**asked), ("true",), (), 0),
        capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    if ended.returncode:
        pytest.skip(ended.stderr)
    return asked


def _sources() -> Path:
    return Path(headrace.__file__).parents[2]


def _is_below(path: Path, places: list[Path]) -> bool:
    return any(path != each and path.is_relative_to(each) for each in places)
