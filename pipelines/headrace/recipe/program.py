"""What runs in place of a model, a script, module or command: found before a lease."""

from __future__ import annotations

import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from headrace.errors import RecipeError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site


def with_program(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths of files of its command, and its module's folder.

    A program starts in a folder of the run's own, where relative paths lead elsewhere. The folder
    of a module that lies in the working folder is added to `code`.
    """
    train, here = recipe.train, Path.cwd()
    command = tuple(
        str(here / word) if (index or "/" in word) and (here / word).is_file() else word
        for index, word in enumerate(train.command)
    )
    lies_here = train.module and PathFinder.find_spec(train.module.partition(".")[0], [str(here)])
    update = {
        "train": train.model_copy(update={"command": command}),
        "code": tuple(dict.fromkeys((*recipe.code, *([str(here)] if lies_here else ())))),
    }
    return recipe.model_copy(update=update)


def check_program(recipe: Recipe, site: Site, role: Role) -> None:
    """Refuse a script, module or program that is missing, as far as this machine can tell.

    Raises:
        RecipeError: It is missing.
    """
    train = recipe.train
    script, shared = (Path(each).expanduser() for each in (train.script or "", site.folder))
    name, folders = train.module or "", [*recipe.code, *sys.path]
    is_known = role.is_here or script.is_relative_to(shared)
    for key, is_missing in (
        ("script", train.script and is_known and not script.is_file()),
        ("module", name and role.is_here and not PathFinder.find_spec(name.split(".")[0], folders)),
        ("command", train.command and role.is_here and not shutil.which(train.command[0])),
    ):
        if is_missing:
            raise RecipeError(
                f"train.{key} is {getattr(train, key)!r}, which does not exist",
                f"The working folder is {Path.cwd()}. Name a Python file in train.script, a "
                "module of a folder in 'code' or of a package in train.module, or a program on "
                "PATH in train.command.",
            )
