"""Make objects of `_target_`: of all names for runs from a terminal, else of what the site allows.

Users who start runs without a shell must not be able to call arbitrary code. So a target of a
fenced run is one of these: a class of a framework, of a kind that fits its key; a name defined in a
package that the site lists, or in a module of the recipe's `code` folders (which the site must
allow); or a name that the site lists in full. All targets are checked before the first is called.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import TargetError, blaming_user_code, nearest
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import (
    SPECIAL_KEYS,
    TargetKind,
    TargetUse,
    allowed_path,
    check_package,
    is_listed,
    is_under,
    listed_by,
    made_at,
    no_attribute,
    not_allowed,
    uses,
    wrong_kind,
)


@dataclass(frozen=True)
class Allowed:
    """Names that targets may have.

    Use `Allowed.of`, which also puts the code folders on the module path.
    """

    listed: Sequence[str] | None
    """Names and packages that the site lists; None: all names are allowed."""
    code: tuple[Path, ...] = ()
    """Folders of user code, resolved."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site) -> Allowed:
        """Return the names that are allowed; put the recipe's code folders on the module path."""
        folders = tuple(check_code(folder, site) for folder in recipe.code)
        sys.path += [each for each in dict.fromkeys(map(str, folders)) if each not in sys.path]
        importlib.invalidate_caches()
        return cls(listed=listed_by(site), code=folders)

    def covers(self, name: str) -> bool:
        """Whether a dotted name is listed, or lies in a module of the code folders."""
        return is_listed(name, self.listed) or self.in_code(name.partition(".")[0])

    def names(self, name: str) -> bool:
        """Whether a dotted name is listed in full."""
        return self.listed is None or name in self.listed

    def in_code(self, top: str) -> bool:
        """Whether a top-level module is that of a code folder, not another of the same name."""
        if not self.code:
            return False
        module = sys.modules.get(top)
        spec = module.__spec__ if module is not None else importlib.util.find_spec(top)
        if spec is None:
            return False
        found = spec.origin if spec.has_location else None
        places = [found] if found else list(spec.submodule_search_locations or ())
        return bool(places) and all(
            any(Path(place).resolve().is_relative_to(folder) for folder in self.code)
            for place in places
        )


def check_code(folder: str, site: Site) -> Path:
    """Return the resolved path of user code; raise `TargetError` if the site does not allow it."""
    path = allowed_path(folder, site)
    if not path.exists():
        raise TargetError(f"The code {path} does not exist", "Correct 'code' of the recipe.")
    return path


def instantiate(
    target: Target | Mapping[str, Any], allowed: Allowed, key: str, *, partial: bool = False
) -> Any:
    """Make the object that a target describes, and the objects in its arguments.

    `key` is its place in the recipe, which determines its kind. With `partial`, return a callable
    that takes further keyword arguments.

    Raises:
        TargetError: A name is not allowed or does not exist, or its object has the wrong kind for
            its place.
        UserCodeError: The code raised.
    """
    config = target.as_config() if isinstance(target, Target) else dict(target)
    if partial:
        config["_partial_"] = True
    found = {use.key: resolve(use, allowed) for use in uses(key, config)}
    made = _made(key, config, found)
    kind = made_at(key)
    if kind is not None and not partial and not isinstance(made, _base(kind)):
        raise wrong_kind(key, f"gave a {type(made).__name__}", kind)
    return made


def instantiate_all(targets: Sequence[Target], allowed: Allowed, key: str) -> tuple[Any, ...]:
    """Make the objects of a list of targets, in order; as `instantiate`."""
    return tuple(instantiate(one, allowed, f"{key}[{i}]") for i, one in enumerate(targets))


def _made(key: str, config: Any, found: Mapping[str, Any]) -> Any:
    """Return plain values with an object in place of each target, the inner ones first."""
    if isinstance(config, list | tuple):
        return [_made(f"{key}[{index}]", value, found) for index, value in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    if config.get("_recursive_", True):
        config = {name: _made(f"{key}.{name}", value, found) for name, value in config.items()}
    if "_target_" not in config:
        return dict(config)
    given = {name: value for name, value in config.items() if name not in SPECIAL_KEYS}
    call = functools.partial(found[key], *config.get("_args_", ()), **given)
    if config.get("_partial_", False):
        return call
    hint = f"Check the arguments of '{key}' in the recipe."
    with blaming_user_code(config["_target_"], hint):
        return call()


def resolve(use: TargetUse, allowed: Allowed) -> Any:
    """Return the class or function that a target names; errors as `instantiate`."""
    parts = use.name.split(".")
    is_own = allowed.covers(use.name)
    if not is_own:
        check_package(use, allowed.listed, allowed.code)
    module, rest = _import_longest(parts)
    found = _attribute(use, allowed, module, rest)
    defined_in = getattr(found, "__module__", None) or module.__name__
    fits = allowed.covers(defined_in) if is_own else _is_of_kind(found, use)
    if not fits and not allowed.names(use.name):
        raise not_allowed(use, f"{defined_in}.{parts[-1]}", allowed.listed, allowed.code)
    if not callable(found):
        raise TargetError(f"'{use.name}' is a {type(found).__name__}, not a class or function")
    kind = made_at(use.key)
    if kind is not None and isinstance(found, type) and not issubclass(found, _base(kind)):
        raise wrong_kind(use.key, f"is the class {use.name}", kind)
    return found


def _attribute(use: TargetUse, allowed: Allowed, module: ModuleType, names: Sequence[str]) -> Any:
    """Return what a module has of that name; members of a class only if the site lists the name."""
    found: Any = module
    for name in names:
        owner, found = found, getattr(found, name, None)
        if found is None:
            public = [each for each in dir(owner) if not each.startswith("_")]
            hint = nearest(name, public).split("Valid:")[0]
            where = getattr(owner, "__name__", str(owner))
            raise TargetError(f"'{use.name}' does not exist", f"{hint}See the names in {where}.")
        if isinstance(found, ModuleType) and allowed.listed is not None:
            raise not_allowed(use, use.name, allowed.listed, allowed.code)
    if len(names) > 1 and not allowed.names(use.name):
        raise no_attribute(use)
    return found


def _is_of_kind(found: Any, use: TargetUse) -> bool:
    """Whether it is a class of a framework whose kind fits the target's place."""
    return isinstance(found, type) and any(
        is_under(found.__module__, kind.homes) and issubclass(found, _base(kind))
        for kind in use.kinds
        if is_under(use.name, (kind.names,))
    )


def _base(kind: TargetKind) -> type:
    module, _, name = kind.base.rpartition(".")
    base: type = getattr(importlib.import_module(module), name)
    return base


def _import_longest(parts: Sequence[str]) -> tuple[ModuleType, Sequence[str]]:
    """Return the longest module that a dotted name begins with, and the rest of the name."""
    module, end = _imported(parts[0]), 1
    if module is None:
        raise TargetError(
            f"There is no module '{parts[0]}'",
            "Install it, or add its folder to 'code' of the recipe.",
        )
    while end < len(parts) and (found := _imported(".".join(parts[: end + 1]))) is not None:
        module, end = found, end + 1
    return module, parts[end:]


def _imported(name: str) -> ModuleType | None:
    """Return a module; None if there is none of that name."""
    with blaming_user_code(
        f"Importing {name}", "Correct the module; it must import on the nodes that train."
    ):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name or name.startswith(f"{error.name}."):
                return None
            raise
