"""Whether targets can be made from the arguments that a recipe gives, as far as source tells."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import TargetError, nearest
from headrace.recipe.base import Target
from headrace.recipe.definitions import definition, signature
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

_OF_HYDRA = frozenset(("_target_", "_args_", "_recursive_", "_convert_", "_partial_"))


@dataclass(frozen=True, kw_only=True)
class _Use:
    """One `_target_` of a recipe."""

    key: str
    """Where it stands, as in `model.optimizer`."""
    name: str
    given: tuple[str, ...]
    """Names of its arguments."""
    is_whole: bool
    """Whether they are all it gets."""


def check_reader(recipe: Recipe, role: Role) -> None:
    """Refuse a function source that cannot be called with its arguments; imports nothing.

    Raises:
        TargetError: It does not exist, or takes no such argument.
    """
    if recipe.dataset.reader is not None:
        _check({"dataset.reader": recipe.dataset.reader}, recipe, role, is_whole=False)


def check_arguments(recipe: Recipe, role: Role) -> None:
    """Refuse targets of a training that cannot be made from their arguments; imports nothing.

    Args:
        recipe: The recipe.
        role: Where it trains: what is installed there may differ from what is here.

    Raises:
        TargetError: One does not exist, takes no such argument, or lacks one.
    """
    data, trainer = recipe.data, recipe.trainer
    lists = {
        "data.sample_transforms": data.sample_transforms,
        "data.transforms": data.transforms,
        "data.augment": data.augment,
        "trainer.callbacks": trainer.callbacks,
    }
    whole = {f"{key}[{i}]": one for key, many in lists.items() for i, one in enumerate(many)}
    if recipe.model is not None:
        whole["model"] = recipe.model
    _check(whole, recipe, role, is_whole=True)
    # a logger may get `save_dir` from headrace
    trainer_class = Target.model_validate({"_target_": trainer.target})
    loggers = {f"trainer.loggers[{i}]": one for i, one in enumerate(trainer.loggers)}
    _check({**loggers, "trainer": trainer_class}, recipe, role, is_whole=False)


def _check(targets: Mapping[str, Target], recipe: Recipe, role: Role, *, is_whole: bool) -> None:
    is_as_here = _is_as_here(role)
    code = [Path(folder).expanduser().resolve() for folder in recipe.code]
    folders = [*code, *(_installed() if is_as_here else ())]
    for key, target in targets.items():
        for use in _uses(key, target.as_config(), is_whole=is_whole):
            try:
                _check_use(use, folders)
            except SyntaxError as error:
                if is_as_here:  # another Python may know more
                    raise _not_python(use, error) from None


def _not_python(use: _Use, error: SyntaxError) -> TargetError:
    return TargetError(
        f"{use.key}: {use.name} cannot be imported: {error.msg} "
        f"({error.filename}, line {error.lineno})",
        "Correct the file.",
    )


def _installed() -> list[Path]:
    return [path for path in map(Path, sys.path) if path.is_dir()]


def _is_as_here(role: Role) -> bool:
    """Whether the nodes import the very packages that this process would."""
    batch = role.batch
    is_contained = batch.container is not None and batch.container.runtime != "none"
    is_changed = batch.python or batch.modules or batch.prologue or "PYTHONPATH" in role.env
    return not (is_contained or is_changed)


def _uses(key: str, config: object, *, is_whole: bool) -> Iterator[_Use]:
    """Every `_target_` in nested mappings and sequences, the inner ones first."""
    if isinstance(config, Mapping):
        inner_whole = is_whole and config.get("_recursive_", True) is True
        for name, value in config.items():
            yield from _uses(f"{key}.{name}", value, is_whole=inner_whole)
        if "_target_" in config:
            is_all = not {"_args_", "_partial_"} & config.keys()
            given = tuple(str(name) for name in config if name not in _OF_HYDRA)
            yield _Use(
                key=key, name=str(config["_target_"]), given=given, is_whole=is_whole and is_all
            )
    elif isinstance(config, Sequence) and not isinstance(config, str):
        for index, value in enumerate(config):
            yield from _uses(f"{key}[{index}]", value, is_whole=is_whole)


def _check_use(use: _Use, folders: Sequence[Path]) -> None:
    found = definition(use.name, folders)
    takes = None if found is None else signature(found, folders)
    if takes is None:
        return
    unknown = [name for name in use.given if name not in takes.names]
    if unknown and not takes.takes_any:
        raise TargetError(
            f"{use.key}: {use.name} has no argument '{unknown[0]}'",
            nearest(unknown[0], takes.names),
        )
    missing = [name for name in takes.required if name not in use.given]
    if missing and use.is_whole:
        names = ", ".join(f"'{name}'" for name in missing)
        raise TargetError(
            f"{use.key}: {use.name} needs {names}, not given in the recipe",
            f"Set {use.key}.{missing[0]}. It takes: {', '.join(takes.names)}.",
        )
