"""Where a run comes from: who answers for it, code, versions, host, time."""

from __future__ import annotations

import json
import logging
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from headrace.errors import RecipeError, without_secrets
from headrace.files.atomic import read_bytes, write_bytes, write_json
from headrace.files.layout import RunFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.accounts import account
from headrace.recipe.difference import differences
from headrace.recipe.load import BUILT_IN, load_recipe, locate
from headrace.runs.working_tree import git_state, installed, uncommitted

logger = logging.getLogger(__name__)

_PROCESS = "cli"
_NAMED = 5


def write_provenance(
    run: RunFolder,
    recipe: str,
    overrides: Sequence[str],
    user: str = "",
    images: Mapping[str, str] | None = None,
) -> None:
    """Write down where a run comes from, and what its code has that is not committed.

    Args:
        run: Folder of the run.
        recipe: Name or file of its recipe.
        overrides: What was changed of that.
        user: Who asked, where that is not the account that this runs as.
        images: Digests of the images of its containers, by path.
    """
    folder = code_folder(locate("recipes", recipe))
    told = provenance(recipe, overrides)
    told["user"] = user or told["user"]
    told["images"] = dict(images or {})
    if (found := uncommitted(folder)) is not None:
        write_bytes(run.diff, found.diff)
        told["left_out"] = list(found.left_out)
        if found.left_out:
            names = ", ".join(found.left_out[:_NAMED])
            logger.warning(
                "Not committed, and too large to be kept with the run: %s%s",
                names,
                f" and {len(found.left_out) - _NAMED} more" if found.left_out[_NAMED:] else "",
            )
    write_json(run.provenance, told)


def provenance(recipe: str, overrides: Sequence[str]) -> dict[str, JsonValue]:
    """Record of where a run of a recipe, given by name or file, comes from.

    The git state is that of the code's folder; see `code_folder`. What the overrides change of the
    file is told.
    """
    file = locate("recipes", recipe)
    folder = code_folder(file)
    return {
        "created_at": time.time(),
        "host": socket.gethostname(),
        "user": account(),
        "command": [without_secrets(word) for word in sys.argv],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "recipe_file": str(file),
        "code_folder": str(folder),
        "packages": installed(),
        "git": git_state(folder),
        "changes": _changes(recipe, overrides),
    }


def user_of(run: RunFolder, owner: str) -> str:
    """Who asked for a run; the owner's text where its folder does not tell."""
    user = _kept(run, "user")
    return user if isinstance(user, str) else owner


def images_kept(run: RunFolder) -> dict[str, str]:
    """Digests of the images of a run's containers when it began, by path."""
    images = _kept(run, "images")
    return images if isinstance(images, dict) else {}


def _kept(run: RunFolder, key: str) -> Any:
    with suppress(ValueError, OSError, AttributeError):  # a damaged file keeps no run from ending
        return json.loads(read_bytes(run.provenance) or "{}").get(key)
    return None


def code_folder(recipe: Path) -> Path:
    """Folder whose repository a recipe's code is of: its own, or the working folder if built in.

    Of a recipe in a run's folder it is that of the run.
    """
    if recipe.is_relative_to(BUILT_IN):
        return Path.cwd()
    folder = recipe.absolute().parent
    record = read_bytes(folder / "provenance.json")
    known = json.loads(record).get("code_folder") if record else None
    return Path(known) if isinstance(known, str) and Path(known).is_dir() else folder


def _changes(recipe: str, overrides: Sequence[str]) -> list[JsonValue]:
    try:
        written = load_recipe(recipe)
    except RecipeError:  # a file that is none without the overrides of the run
        return []
    return [each.model_dump() for each in differences(written, load_recipe(recipe, overrides))]


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
