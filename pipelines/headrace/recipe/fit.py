"""Check that a recipe fits a site, before any machine is used.

Paths of a recipe lead only to places that the site allows: users who may trigger runs have not the
rights of the running account. At a terminal, limits keep recipes of others within usual folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import RecipeError, SiteError, nearest
from headrace.processes.working_folder import problem_of
from headrace.recipe.base import Settings, Target
from headrace.recipe.crop import crops_of
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.gang_size import check_global_batch, check_nodes, gang_size
from headrace.recipe.home import home
from headrace.recipe.model_source import check_model_source
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.target_arguments import (
    check_arguments,
    check_loggers,
    check_metrics,
    check_reader,
    source_code,
)
from headrace.recipe.targets import FRAMEWORKS, check_targets, targets_of, uses

_ROWS = ("hdf5", "parquet", "huggingface", "function")
"""Forms of sources that may have a field named `label`."""
_NETWORK_LOGGERS = tuple(
    f"lightning.pytorch.loggers.{name}"
    for name in ("CometLogger", "LitLogger", "MLFlowLogger", "NeptuneLogger", "WandbLogger")
)
"""Loggers that send what they are given to a server, which their arguments may name."""

_READ, _WRITTEN = ("allowed_sources",), ("allowed_outputs",)
_BOTH = (*_READ, *_WRITTEN)
"""Keys of the site; one of them must allow a path."""

_PATHS = {
    ("dataset", "source"): _READ,
    ("dataset", "path"): _READ,
    ("pack", "target"): _WRITTEN,
    ("trainer", "checkpoint_target"): _WRITTEN,
    ("train", "init_from"): _BOTH,
    ("suite", "file"): _READ,
}
"""Section and key of each path or URL of a recipe, besides code and evaluated checkpoints."""

_WEIGHTS = ("train.init_from", "evaluate.checkpoint")
"""Keys of files that are weights."""

_URL = re.compile(r"[A-Za-z][\w+.-]*:+/")
_LEADS = re.compile(rf"/+[^/]|~|{_URL.pattern}|.*::|(.*/)?\.\.(/|$)", re.DOTALL)
"""What a text of an argument begins with, or holds, that leads out of the folder of a run."""


def check_packing(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe whose dataset cannot be packed on the site, or with paths that it forbids.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: A path of the recipe leads where the site does not let recipes go.
        TargetError: `dataset.reader` is not allowed, does not exist, or takes no such argument.
    """
    if recipe.dataset is None:
        check_places(recipe, site)
        return
    key = "pack_role" if recipe.dataset_path is None else "train.role"
    role = _role(recipe, site, key, recipe.packing_role)
    check_places(recipe, site)
    check_targets(recipe, site, only="dataset.reader")
    check_reader(recipe, role)


def check_role(recipe: Recipe, site: Site) -> None:
    """Refuse a role that the site does not have, or more nodes than it has.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: It has too few nodes.
    """
    check_nodes(recipe, _role(recipe, site, "train.role", recipe.train.role))


def check_training(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that cannot be trained on the site.

    Raises:
        SiteError: The site lacks the role.
        TargetError: The site does not allow a target or code of the recipe, or a target cannot be
            made from its arguments, or a logger lacks its package.
        RecipeError: It evaluates without labels, or its model lacks named steps or metrics.
        UserError: The ranks cannot share the global batch equally, or the role has too few nodes.
    """
    role = _role(recipe, site, "train.role", recipe.train.role)
    check_nodes(recipe, role)
    check_targets(recipe, site)
    check_arguments(recipe, role, site.allowed_targets)
    crops_of(recipe)
    check_loggers(recipe, role)
    check_metrics(recipe, role)
    _check_model(recipe, role)
    _check_labels(recipe)
    if recipe.model is not None:
        num_nodes, ranks_per_node = gang_size(recipe, role)
        check_global_batch(
            recipe.data.global_batch_size,
            recipe.trainer.data_ranks(num_nodes * ranks_per_node),
            recipe.trainer.accumulate_grad_batches,
        )


def check_evaluation(recipe: Recipe, site: Site) -> None:
    """Refuse an evaluation of another run that the site does not let a recipe make.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: A path of the recipe leads where the site does not let recipes go.
        TargetError: As for training.
    """
    role = _role(recipe, site, "train.role", recipe.train.role)
    check_places(recipe, site)
    check_targets(recipe, site)
    check_arguments(recipe, role, site.allowed_targets)
    crops_of(recipe)
    check_metrics(recipe, role)
    _check_model(recipe, role, trains=False)


def _check_model(recipe: Recipe, role: Role, *, trains: bool = True) -> None:
    if recipe.evaluate is not None:
        recipe.evaluate.check_bounds()
    check_model_source(recipe, source_code(recipe, role), trains=trains)


def _check_labels(recipe: Recipe) -> None:
    """Refuse an evaluation if the recipe alone shows that labels are missing."""
    dataset = recipe.dataset
    if dataset is None or recipe.evaluate is None or recipe.evaluate.task == "custom":
        return
    if dataset.source is None or "label" in dataset.fields:
        return
    may_bring_one = dataset.reader is not None or dataset.format in _ROWS
    if dataset.labels == "none" and (dataset.fields or not may_bring_one):
        raise RecipeError(
            "evaluate compares predictions with labels, but dataset.labels is 'none'",
            "Say where labels come from (dataset.labels: folders, index or field), set "
            "evaluate.task: custom if the model itself knows the labels, or evaluate: null.",
        )


def _role(recipe: Recipe, site: Site, key: str, name: str) -> Role:
    if name not in site.roles:
        raise SiteError(
            f"Recipe '{recipe.name}' asks by {key} for the role '{name}', "
            f"which site '{site.name}' does not have",
            nearest(name, site.roles),
        )
    return site.roles[name]


_Place = tuple[str, str, tuple[str, ...]]
"""Key and value of a path or URL in a recipe, and keys of the site; one of them must allow it."""


def opened(site: Site, *, is_from_terminal: bool) -> Site:
    """Return the site with the defaults of its lists added.

    Args:
        site: The site as written.
        is_from_terminal: Whether the requester has this account; otherwise only the site's own
            lists, its datasets and samples of examples count.
    """
    folder = Path(site.folder).expanduser()
    examples = [str(home() / "examples"), *filter(None, [os.environ.get("HEADRACE_DIGITS")])]
    user_home = os.path.expanduser("~")  # which stays so for an account without one
    here = [str(folder), *({user_home} - {"~"}), str(Path.cwd())] if is_from_terminal else []
    is_safe = not problem_of(Path.cwd())
    there = ["s3://", "gs://", "az://", "abfs://", "hf://"] if is_from_terminal else []
    packed = str(folder.absolute() / "datasets")
    changes: dict[str, tuple[str, ...]] = {
        "allowed_sources": (*site.allowed_sources, packed, *examples, *here, *there),
        "allowed_outputs": (*site.allowed_outputs, packed, *here, *there),
        "allowed_code": (*site.allowed_code, *(here if is_safe else here[:-1])),
    }
    if is_from_terminal:
        changes["allowed_targets"] = (*site.allowed_targets, *_NETWORK_LOGGERS)
    once = {name: tuple(dict.fromkeys(each)) for name, each in changes.items()}
    roles = dict(site.roles)
    for name, role in () if is_from_terminal else site.roles.items():
        most = role.ranks_per_node_max or role.ranks_per_node
        roles[name] = role.model_copy(update={"ranks_per_node_max": most})
    return site.model_copy(update={**once, "roles": roles})


def absolute(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths for those relative to this folder."""
    changes: dict[str, object] = {"code": tuple(filter(None, map(_absolute, recipe.code)))}
    for section, name in _PATHS:
        part = changes.get(section, getattr(recipe, section))
        if isinstance(part, Settings):
            path = _absolute(getattr(part, name))
            changes[section] = part.model_copy(update={name: path})
    changes["evaluate"] = recipe.evaluate and _located(recipe.evaluate)
    return recipe.model_copy(update=changes)


def _located(spec: EvaluateSpec) -> EvaluateSpec:
    first, *others = (_absolute(x) if x in spec.files else x for x in spec.checkpoints)
    return spec.model_copy(update={"checkpoint": first, "also_checkpoints": tuple(others)})


def check_places(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that leads where the site does not let it, links followed; opens nothing."""
    index = None if recipe.dataset is None else recipe.dataset.index
    if index is not None and (index.startswith("/") or ".." in Path(index).parts):
        raise RecipeError(
            f"dataset.index is '{index}', which lies outside of dataset.source",
            "Write its path below dataset.source.",
        )
    for key, value, lists in _places(recipe):
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


def _places(recipe: Recipe) -> Iterator[_Place]:
    for (section, name), lists in _PATHS.items():
        value = getattr(getattr(recipe, section), name, None)
        if value is not None:
            yield f"{section}.{name}", value, lists
    for file in recipe.evaluate.files if recipe.evaluate else ():
        yield "evaluate.checkpoint", file, _BOTH
    for argument in recipe.train.args:
        text = argument.partition("=")[2] if argument.startswith("-") else argument
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
    """Return the path of a `file://` URL; other values unchanged."""
    return unquote(urlsplit(value).path) if value.startswith("file://") else value


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
    if value is None or _URL.match(value) or value.startswith("~"):
        return value
    return str(Path(value).absolute())
