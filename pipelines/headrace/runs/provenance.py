"""Provenance of a run: requester, code, versions, host, time."""

from __future__ import annotations

import json
import logging
import platform
import socket
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pydantic import ConfigDict

from headrace.errors import RecipeError, without_secrets
from headrace.files.atomic import read_bytes, write_bytes, write_record
from headrace.files.layout import RunFolder
from headrace.informing import DECISION_S, inform
from headrace.recipe.difference import Change, differences
from headrace.recipe.load import BUILT_IN, load_recipe, locate
from headrace.recipe.recipe import Recipe
from headrace.recipe.unix_accounts import account
from headrace.runs.code_state import CodeState, code_state
from headrace.runs.lock import write_lock

logger = logging.getLogger(__name__)

_NAMED = 5


class Provenance(CodeState):
    """`provenance.json` of a run; earlier releases wrote fewer fields."""

    model_config = ConfigDict(extra="ignore")

    created_at: float = 0.0
    """Seconds since the epoch."""
    host: str = ""
    user: str = ""
    """The requester."""
    command: tuple[str, ...] = ()
    platform: str = ""
    recipe_file: str = ""
    changes: tuple[Change, ...] = ()
    """Changes of the overrides to that file."""


def write_provenance(
    run: RunFolder, recipe: str, loaded: Recipe, user: str, images: Iterable[str]
) -> None:
    """Write the provenance of a run, and the uncommitted changes of its code.

    Args:
        run: Folder of the run.
        recipe: Name or file of its recipe.
        loaded: The recipe with the overrides.
        user: The requester; empty for the account of this process.
        images: The images of its containers.
    """
    file = locate("recipes", recipe)
    folder = code_folder(file)
    asked = partial(code_state, folder, tuple(images))
    found = inform(run, "state of the code", asked, tuple, DECISION_S)
    made_with, diff = found or (CodeState(code_folder=str(folder)), None)
    left_out = made_with.left_out
    inform(run, "lock of the packages", partial(write_lock, run), None, DECISION_S)
    if diff is not None:
        write_bytes(run.diff, diff)
    if left_out:
        more = f" and {len(left_out) - _NAMED} more" if left_out[_NAMED:] else ""
        words = "Not committed, and too large to be kept with the run: %s%s"
        logger.warning(words, ", ".join(left_out[:_NAMED]), more)
    write_record(run.provenance, Provenance(
        **dict(made_with),
        created_at=time.time(),
        host=socket.gethostname(),
        user=user or account(),
        command=tuple(without_secrets(word) for word in sys.argv),
        platform=platform.platform(),
        recipe_file=str(file),
        changes=inform(run, "changed keys", partial(_changes, recipe, loaded), tuple) or (),
    ))  # fmt: skip


def read_provenance(run: RunFolder) -> Provenance:
    """Return the provenance of a run; empty if it cannot be read, since no run depends on it."""
    try:
        content = json.loads(read_bytes(run.provenance) or b"{}")
        content.setdefault("packages", content.get("versions", {}))
        return Provenance.model_validate(content)
    except (ValueError, OSError, AttributeError):
        return Provenance()


def code_folder(recipe: Path) -> Path:
    """Return the folder of a recipe's code: the recipe's own, or the working folder if built in.

    For a recipe in a run's folder it is the code folder of the run.
    """
    if recipe.is_relative_to(BUILT_IN):
        return Path.cwd()
    folder = recipe.absolute().parent
    known = read_provenance(RunFolder(folder)).code_folder
    return Path(known) if known and Path(known).is_dir() else folder


def _changes(recipe: str, loaded: Recipe) -> tuple[Change, ...]:
    try:
        return differences(load_recipe(recipe), loaded)
    except RecipeError:  # the file is invalid without the overrides of the run
        return ()
