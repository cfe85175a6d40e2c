"""The fence: which paths, URLs and code a recipe may name, by the door of its requester.

Users who may trigger runs without a shell have not the rights of the account that runs them: they
reach what the site lists. A terminal is a shell of that account: all is open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import JsonValue

from headrace.errors import RecipeError, warn_once
from headrace.processes.working_folder import problem_of
from headrace.recipe.base import Settings, Target
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.home import home
from headrace.recipe.program import with_files
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import FRAMEWORKS, targets_of, uses, uses_of
from headrace.recipe.unix_accounts import other_account

_READ, _WRITTEN = ("allowed_sources",), ("allowed_outputs",)
_BOTH = (*_READ, *_WRITTEN)
"""Keys of the site; one of them must allow a path."""

_PATHS = {
    ("dataset", "source"): _READ,
    ("dataset", "path"): _READ,
    ("pack", "target"): _WRITTEN,
    ("trainer", "checkpoint_target"): _WRITTEN,
    ("train", "init_from"): _BOTH,
    ("train", "folder"): _WRITTEN,
    ("train", "script"): ("allowed_code",),
    ("suite", "file"): _READ,
}
"""Section and key of each path or URL of a recipe, besides code and evaluated checkpoints."""

_WEIGHTS = ("train.init_from", "evaluate.checkpoint")
"""Keys of files that are weights."""

_URL, _FILE_URL = re.compile(r"[A-Za-z][\w+.-]*:+/"), re.compile("file://(localhost)?/")
_LEADS = re.compile(rf"/+[^/]|~|{_URL.pattern}|.*::|(.*/)?\.\.(/|$)", re.DOTALL)
"""What a text of an argument begins with, or holds, that leads out of the folder of a run."""


_Place = tuple[str, str, tuple[str, ...]]
"""Key and value of a path or URL in a recipe, and keys of the site; one of them must allow it."""


def opened(site: Site, *, is_from_terminal: bool) -> Site:
    """Return the site, as written `for_user`, with what this requester may use.

    A terminal whose work runs as the same account may use every place and all code that the account
    can reach. Every other door, and submission as another account, has the site's own lists, its
    datasets and the samples of examples.
    """
    if is_from_terminal and not other_account(site):
        return site.model_copy(update={"is_fenced": False})
    packed = str(Path(site.folder).expanduser().absolute() / "datasets")
    examples = [str(home() / "examples"), *filter(None, [os.environ.get("HEADRACE_DIGITS")])]
    changes = {
        "allowed_sources": (*site.allowed_sources, packed, *examples),
        "allowed_outputs": (*site.allowed_outputs, packed),
    }
    roles = dict(site.roles)
    for name, role in site.roles.items():
        most = role.ranks_per_node_max or role.ranks_per_node
        roles[name] = role.model_copy(update={"ranks_per_node_max": most})
    once = {name: tuple(dict.fromkeys(each)) for name, each in changes.items()}
    return site.model_copy(update={**once, "roles": roles, "is_fenced": True})


def with_code_beside(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with `folder` in `code` if targets need a module that only this folder has.

    For `train.module` it comes before an installed one, as for `python -m`. A folder that other
    accounts may change is not added; a warning gives the reason.
    """
    started = {(recipe.train.module or "").partition(".")[0]} - {""}
    tops = started | {use.name.partition(".")[0] for use in uses_of(recipe)}
    known = [Path(os.path.expanduser(each)) for each in recipe.code]
    lacking = [top for top in sorted(tops) if not any(_module(each, top) for each in known)]
    needed = [
        file
        for top in lacking
        if (file := _module(folder, top)) and (top in started or not _is_installed(top, folder))
    ]
    if not needed:
        return recipe
    if problem := next(filter(None, map(problem_of, (folder, *needed))), ""):
        warn_once(f"Modules in {folder} are not used: {problem}. To use them, name it in 'code'")
        return recipe
    return recipe.model_copy(update={"code": (*recipe.code, str(folder))})


def _is_installed(top: str, folder: Path) -> bool:
    """Whether nodes find a module without `folder`, which a notebook has on its module path."""
    spec = find_spec(top)
    places = [spec.origin] if spec and spec.origin else []
    places += (spec and spec.submodule_search_locations) or []
    return any(not Path(place).is_relative_to(folder) for place in places)


def _module(folder: Path, top: str) -> Path | None:
    """Return the file or folder of a top-level module in a folder; None if there is none."""
    places = (folder / f"{top}.py", folder / top)
    return next((each for each in places if each.is_file() or any(each.glob("*.py"))), None)


def absolute(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths for those relative to this folder."""
    evaluate, command = recipe.evaluate, with_files(recipe.train.command)
    changes: dict[str, object] = {
        "code": tuple(filter(None, map(_absolute, recipe.code))),
        "train": recipe.train.model_copy(update={"command": command}),
    }
    for section, name in _PATHS:
        part = changes.get(section, getattr(recipe, section))
        if isinstance(part, Settings):
            path = _absolute(getattr(part, name))
            changes[section] = part.model_copy(update={name: path})
    if evaluate is not None:
        files = evaluate.files
        first, *others = (_absolute(x) if x in files else x for x in evaluate.checkpoints)
        update = {"checkpoint": first, "also_checkpoints": tuple(others)}
        changes["evaluate"] = evaluate.model_copy(update=update)
    if isinstance(dataset := changes.get("dataset"), DatasetSpec):
        changes["dataset"] = _with_index_here(dataset)
    return recipe.model_copy(update=changes)


def _with_index_here(dataset: DatasetSpec) -> DatasetSpec:
    """Return the dataset with the path of an index that lies in this folder, not in the source."""
    index, source = dataset.index or "", os.path.expanduser(dataset.source or "")
    if _URL.match(source) or _LEADS.match(index) or not Path(index).is_file():
        return dataset
    beside = Path(source).parent if Path(source).is_file() else Path(source)
    if (beside / index).is_file():
        return dataset
    return dataset.model_copy(update={"index": _absolute(index)})


def placed(key: str, value: JsonValue) -> JsonValue:
    """Return a value of a dotted key; a path that exists in this folder becomes absolute."""
    if key == "train.command" and isinstance(value, list):
        return [*with_files(value)]
    is_path = isinstance(value, str) and tuple(key.split(".")) in _PATHS
    return os.path.abspath(str(value)) if is_path and os.path.exists(str(value)) else value


def check_places(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that leads where the site does not let it, links followed; opens nothing."""
    for key, value, lists in _places(recipe) if site.is_fenced else ():
        roots = [root for name in lists for root in getattr(site, name)]
        if key in _WEIGHTS:  # those of the site's own runs, which are read as such only
            roots.append(str(Path(site.folder).expanduser() / "runs"))
        if not any(_lies_in(value, root) for root in roots):
            line = f'{lists[0]}: ["{_shown(value)}"]'
            raise RecipeError(
                f"{key} leads to {_shown(value)}, where site '{site.name}' does not let recipes go",
                f"Allowed: {', '.join(dict.fromkeys(roots))}. For more, write into the site: "
                f"{line}",
            )
    named = ((key, value) for key, value, _ in _named_places(recipe))
    for key, value in (*named, *(("code", each) for each in recipe.code)):
        if os.path.expanduser(value).startswith("~"):
            raise RecipeError(
                f"{key} is '{value}', in the home of a user whom this machine does not know",
                "Correct the user's name, or write the whole path.",
            )


def _named_places(recipe: Recipe) -> Iterator[_Place]:
    for (section, name), lists in _PATHS.items():
        value = getattr(getattr(recipe, section), name, None)
        if value is not None:
            yield f"{section}.{name}", value, lists
    for file in recipe.evaluate.files if recipe.evaluate else ():
        yield "evaluate.checkpoint", file, _BOTH


def _places(recipe: Recipe) -> Iterator[_Place]:
    yield from _named_places(recipe)
    index = recipe.dataset.index if recipe.dataset else None
    if index is not None and _LEADS.match(index):
        yield "dataset.index", index, _READ
    for text in recipe.train.words:
        if _LEADS.match(text):
            yield "train.args", text, _BOTH
    for key, text in _texts("trainer.extra", recipe.trainer.extra):
        if _LEADS.match(text):
            yield key, text, _WRITTEN
    for key, target in targets_of(recipe).items():
        lists = _WRITTEN if key.startswith("trainer") else _BOTH
        yield from _in_arguments(key, target, lists)


def _in_arguments(key: str, target: Target, lists: tuple[str, ...]) -> Iterator[_Place]:
    config = target.as_config()
    names = [use.name.partition(".")[0] for use in uses(key, config)]
    is_framework = any(name in FRAMEWORKS for name in names)
    for where, text in _texts(key, config):
        if is_framework and ("$" in text or set(text) == {"/"}):  # they expand variables
            raise RecipeError(f"{where} is '{text}', no path", "Write the whole path.")
        if _LEADS.match(text):
            yield where, text, lists


def _texts(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _texts(f"{key}.{name}", part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _texts(f"{key}[{index}]", part)


def _lies_in(value: str, root: str) -> bool:
    value, root = _local(value), _local(root)
    if _URL.match(value) or "::" in value or _URL.match(root):
        is_plain = ".." not in value and "::" not in value
        return is_plain and f"{value}/".startswith(f"{root.rstrip('/')}/")
    resolved = _resolved(value)
    return resolved is not None and resolved.is_relative_to(Path(root).expanduser().resolve())


def _local(value: str) -> str:
    """Return the path of a `file://` URL of this machine; other values unchanged."""
    return unquote(urlsplit(value).path) if _FILE_URL.match(value) else value


def _resolved(value: str) -> Path | None:
    """Return a local path without links and `..`; None if it is relative or invalid."""
    try:
        path = Path(value).expanduser()
        return path.resolve() if path.is_absolute() else None
    except (OSError, RuntimeError, ValueError):  # no such user, links in a circle, a null byte
        return None


def _shown(value: str) -> str:
    return value if _URL.match(value) else str(_resolved(value) or value)


def _absolute(value: str | None) -> str | None:
    value = value and _local(value)
    if value is None or _URL.match(value) or value.startswith("~"):
        return value
    return str(Path(value).absolute())
