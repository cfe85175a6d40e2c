"""What a run came from: code, versions, host, time."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import JsonValue

from headrace.errors import without_secrets
from headrace.recipe.load import BUILT_IN, locate

_PACKAGES = (
    "headrace", "torch", "lightning", "torchmetrics", "numpy", "h5py", "dask", "distributed",
    "apache-airflow",
)  # fmt: skip


def provenance(recipe: str) -> dict[str, JsonValue]:
    """Record of where a run comes from.

    Args:
        recipe: Name or file of the recipe; the git state is that of the folder it lies in, or of
            the working folder for the recipes that come with headrace.
    """
    file = locate("recipes", recipe)
    folder = Path.cwd() if file.is_relative_to(BUILT_IN) else file.absolute().parent
    return {
        "created_at": time.time(),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "command": [without_secrets(word) for word in sys.argv],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "recipe_file": str(file),
        "versions": dict(_versions()),
        "git": git_state(folder),
    }


def git_state(folder: Path) -> JsonValue:
    """Commit of the repository around `folder` and whether its tree differs from it.

    Returns:
        `{"commit", "dirty"}`, or None outside a repository (or without git).
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _versions() -> list[tuple[str, JsonValue]]:
    found: list[tuple[str, JsonValue]] = []
    for package in _PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found
