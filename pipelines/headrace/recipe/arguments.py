"""Whether targets can be made from the arguments that a recipe gives, as far as source tells."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import TargetError, nearest
from headrace.recipe.base import Target
from headrace.recipe.definitions import Definition, definition, derives_from
from headrace.recipe.kinds import (
    FRAMEWORKS,
    Kind,
    Use,
    is_under,
    made_at,
    targets_of,
    uses,
    wrong_kind,
)
from headrace.recipe.recipe import Recipe
from headrace.recipe.signatures import Signature, signature
from headrace.recipe.site import Role
from headrace.recipe.targets import no_attribute, not_allowed
from headrace.recipe.values import does_not_fit, is_list_of_numbers


def check_reader(recipe: Recipe, role: Role) -> None:
    """Refuse a function source that cannot be called with its arguments; imports nothing.

    Raises:
        TargetError: It does not exist, or takes no such argument.
    """
    if recipe.dataset.reader is not None:
        _check({"dataset.reader": recipe.dataset.reader}, recipe, role, is_whole=False)


def check_arguments(recipe: Recipe, role: Role, listed: Sequence[str] = ()) -> None:
    """Refuse targets of a training that cannot be made from their arguments; imports nothing.

    What source shows not to belong where it stands is refused, too.

    Args:
        recipe: The recipe.
        role: Where it trains: what is installed there may differ from what is here.
        listed: Names and packages that the site lists.

    Raises:
        TargetError: One does not exist, is of the wrong kind, takes no such argument, or lacks one.
    """
    targets = targets_of(recipe)
    targets.pop("dataset.reader", None)
    # a logger may get `save_dir` from headrace
    more = {key: one for key, one in targets.items() if key == "trainer" or "logger" in key}
    whole = {key: one for key, one in targets.items() if key not in more}
    _check(whole, recipe, role, listed, is_whole=True)
    _check(more, recipe, role, listed, is_whole=False)
    _check_extra(recipe, role)


def trainer_arguments() -> tuple[str, ...]:
    """Names of the arguments of Lightning's Trainer; empty where it is not installed."""
    folders = _installed()
    found = definition("lightning.pytorch.Trainer", folders)
    takes = None if found is None else signature(found, folders)
    return () if takes is None else takes.names


def _check_extra(recipe: Recipe, role: Role) -> None:
    trainer = recipe.trainer
    use = Use(key="trainer.extra", name=trainer.target, config=trainer.extra, is_whole=False)
    _check_given(use, _folders(recipe, role))


def _check(
    targets: Mapping[str, Target],
    recipe: Recipe,
    role: Role,
    listed: Sequence[str] = (),
    *,
    is_whole: bool,
) -> None:
    as_here = is_as_here(role)
    folders = _folders(recipe, role)
    for key, target in targets.items():
        for use in uses(key, target.as_config(), is_whole=is_whole):
            try:
                if use.name not in listed:
                    _check_kind(use, folders, listed)
                _check_given(use, folders)
            except SyntaxError as error:
                if as_here:  # another Python may know more
                    raise _not_python(use, error) from None


def _folders(recipe: Recipe, role: Role) -> list[Path]:
    """Where the modules of a recipe are looked for."""
    code = [Path(folder).expanduser().resolve() for folder in recipe.code]
    return [*code, *(_installed() if is_as_here(role) else ())]


def _not_python(use: Use, error: SyntaxError) -> TargetError:
    return TargetError(
        f"{use.key}: {use.name} cannot be imported: {error.msg} "
        f"({error.filename}, line {error.lineno})",
        "Correct the file.",
    )


def _installed() -> list[Path]:
    return [path for path in map(Path, sys.path) if path.is_dir()]


def is_as_here(role: Role) -> bool:
    """Whether the nodes import the very packages that this process would."""
    batch = role.batch
    is_contained = batch.container is not None and batch.container.runtime != "none"
    is_changed = batch.python or batch.modules or batch.prologue or "PYTHONPATH" in role.env
    return not (is_contained or is_changed)


def _check_kind(use: Use, folders: Sequence[Path], listed: Sequence[str]) -> None:
    found = definition(use.name, folders)
    if found is None:
        owner = definition(use.name.rpartition(".")[0], folders)
        if owner is not None:
            raise no_attribute(use)
        return
    kinds = use.kinds if is_under(use.name, FRAMEWORKS) else ()
    near = [kind for kind in kinds if kind.names and is_under(use.name, (kind.names,))]
    if kinds and not any(_may_be(found, kind, folders) for kind in near):
        raise not_allowed(use, f"{found.module.name}.{found.node.name}", listed)
    made = made_at(use.key)
    is_wrong = made is not None and derives_from(found, made.class_name, folders) is False
    if made is not None and is_wrong and not found.is_function:
        raise wrong_kind(use.key, f"is the class {use.name}", made)


def _may_be(found: Definition, kind: Kind, folders: Sequence[Path]) -> bool:
    """Whether source shows nothing against something of a framework being of a kind."""
    is_home = is_under(found.module.name, kind.homes)
    return is_home and derives_from(found, kind.class_name, folders) is not False


def _check_given(use: Use, folders: Sequence[Path]) -> None:
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
    for name in use.given:
        _check_value(use, name, use.config[name], takes)


def _check_value(use: Use, name: str, value: object, takes: Signature) -> None:
    types, are_many = takes.types.get(name, frozenset()), is_list_of_numbers(value)
    is_text_for_number = name in takes.numbers and isinstance(value, str) and are_many
    if does_not_fit(value, types) or is_text_for_number:
        wanted = " or ".join(sorted(types)) or "number"
        raise TargetError(
            f"{use.key}.{name} is {value!r}, but {use.name} takes one {wanted} there",
            "A run has one value for each argument: ask for a run with each of them."
            if are_many
            else f"Write it as {wanted}.",
        )
