"""What runs in place of a model, a script, module or command: found before a lease."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib import invalidate_caches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from pydantic import JsonValue

from headrace.errors import RecipeError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site


def with_files(command: Sequence[JsonValue]) -> tuple[JsonValue, ...]:
    """Return a command with absolute paths of its files.

    A program starts in a folder of the run's own, where relative paths lead elsewhere.
    """
    return tuple(
        os.path.abspath(word)
        if isinstance(word, str) and (index or "/" in word) and Path(word).is_file()
        else word
        for index, word in enumerate(command)
    )


def check_program(recipe: Recipe, site: Site, role: Role) -> None:
    """Raise RecipeError if the script, module or program is missing, as far as is known here."""
    train, is_known = recipe.train, role.is_here
    if train.script is not None:
        script, shared = (Path(each).expanduser() for each in (train.script, site.folder))
        is_known |= script.is_relative_to(shared)
        key, lacking = "script", "" if script.is_file() else train.script
    elif train.module is not None:
        key, lacking = "module", _lacking(train.module, recipe.code)
    else:
        key, lacking = "command", "".join(train.command[:1])
        lacking = "" if shutil.which(lacking) else lacking
    if is_known and lacking:
        raise RecipeError(
            f"train.{key} needs {lacking!r}, which does not exist",
            f"The working folder is {Path.cwd()}. Name a Python file in train.script, a "
            "module of a folder in 'code' or of a package in train.module, or a program on "
            "PATH in train.command.",
        )


def _lacking(name: str, code: Sequence[str]) -> str:
    """Return the module that `python -m` would not find; empty if it finds all. Imports none."""
    invalidate_caches()
    parts, folders = name.split("."), [*code, *sys.path]
    for index, part in enumerate(parts):
        spec = PathFinder.find_spec(part, folders)
        if spec is None and not index and part != "__main__":
            spec = find_spec(part)  # an editable install may have a finder of its own
        if spec is None:
            return ".".join(parts[: index + 1])
        folders = list(spec.submodule_search_locations or ())
    return f"{name}.__main__" if folders and not PathFinder.find_spec("__main__", folders) else ""
