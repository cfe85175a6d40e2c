"""Where a run comes from: who answers for it, code, versions, host, time."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import JsonValue

from headrace.errors import RecipeError, without_secrets
from headrace.processes import ProcessIdentity
from headrace.recipe.difference import differences
from headrace.recipe.load import BUILT_IN, load_recipe, locate

_PACKAGES = (
    "headrace", "torch", "lightning", "torchmetrics", "numpy", "h5py", "dask", "distributed",
    "apache-airflow",
)  # fmt: skip
_PROCESS = "cli"


def provenance(recipe: str, overrides: Sequence[str]) -> dict[str, JsonValue]:
    """Record of where a run of a recipe, given by name or file, comes from.

    The git state is that of the recipe's folder, or of the working folder for built-in recipes.
    What the overrides change of the file is told.
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
        "versions": _versions(),
        "git": git_state(folder),
        "changes": _changes(recipe, overrides),
    }


def _changes(recipe: str, overrides: Sequence[str]) -> list[JsonValue]:
    try:
        written = load_recipe(recipe)
    except RecipeError:  # a file that is none without the overrides of the run
        return []
    return [each.model_dump() for each in differences(written, load_recipe(recipe, overrides))]


def git_state(folder: Path) -> JsonValue:
    """`{"commit", "dirty"}` of the repository around a folder; None outside one or without git."""
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


def _versions() -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def process_owner() -> str:
    """Owner text of this very process."""
    me = ProcessIdentity.of()
    return f"{_PROCESS}:{me.host}:{me.pid}:{me.started_s!r}"


def owner_process(owner: str) -> ProcessIdentity | None:
    """The process that an owner text names; None for owners of another kind."""
    kind, _, rest = owner.partition(":")
    if kind != _PROCESS:
        return None
    host, pid, started_s = rest.rsplit(":", 2)
    return ProcessIdentity(host=host, pid=int(pid), started_s=float(started_s))


def owner_is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended."""
    process = owner_process(owner)
    return process is not None and process.is_here and not process.is_alive
