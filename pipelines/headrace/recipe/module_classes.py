"""Whether a model can have modules of the classes that a recipe names, read from source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from headrace.errors import TargetError, nearest
from headrace.recipe.arguments import is_as_here
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.targets import FRAMEWORKS, uses

_NO_MODULES = {*FRAMEWORKS, *sys.stdlib_module_names, "numpy"}
"""Packages whose modules of `torch.nn`, if any, are those of PyTorch."""
_MAKES_OTHERS = re.compile(
    r"\bhub\b|\btorch\.(load|jit|package|export)\b|\bimport_module\(|__import__|\bexec\(|\beval\("
    r"|\btype\([^()]*,|\bdemos\b"
)
"""What may bring classes that source does not show."""
_MOST_FILES = 200


def check_module_classes(recipe: Recipe, role: Role) -> None:
    """Refuse names of classes that neither the model's code nor PyTorch defines; imports nothing.

    Says nothing where the model's code uses other packages, which may define them.

    Raises:
        TargetError: There is no class of that name.
    """
    named = {
        "trainer.fsdp.wrap": recipe.trainer.fsdp.wrap,
        "trainer.activation_checkpointing": recipe.trainer.activation_checkpointing,
    }
    if recipe.model is None or not any(named.values()) or not is_as_here(role):
        return
    try:
        own = _classes(recipe)
    except (OSError, SyntaxError, ValueError):  # for Python to tell
        return
    if own is None:
        return
    known = own | _classes_of_torch()
    for key, names in named.items():
        for name in names:
            if name not in known:
                raise TargetError(
                    f"{key} names {name}, which is no class of the model's code or of torch.nn",
                    nearest(name, own.union(get_close_matches(name, known, n=1))),
                )


def _classes(recipe: Recipe) -> set[str] | None:
    """Names of all classes of the model's code; None where it may use others than PyTorch's."""
    folders = [str(Path(folder).expanduser().resolve()) for folder in recipe.code]
    config = {} if recipe.model is None else recipe.model.as_config()
    waiting = [use.name.partition(".")[0] for use in uses("model", config)]
    found: set[str] = set()
    for top in waiting:
        files = _files_of(top, folders)
        if files is None or len(files) > _MOST_FILES:
            return None
        for file in files:
            text = file.read_text(encoding="utf-8")
            if _MAKES_OTHERS.search(text):
                return None
            tree = ast.parse(text)
            found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
            waiting += sorted(set(_imported(tree)) - set(waiting))
    return found


def _files_of(top: str, folders: list[str]) -> list[Path] | None:
    """Source of a module or package of the code folders; none of others; None if unknown."""
    spec = PathFinder.find_spec(top, folders)
    if spec is None:
        return [] if top in _NO_MODULES else None
    if spec.submodule_search_locations:
        return [
            file for each in spec.submodule_search_locations for file in Path(each).rglob("*.py")
        ]
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _classes_of_torch() -> set[str]:
    spec = PathFinder.find_spec("torch")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [file for each in folders for file in (Path(each) / "nn").rglob("*.py")]
    texts = (file.read_text(encoding="utf-8") for file in files)
    return {name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
