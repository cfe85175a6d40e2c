"""`_target_` to objects, only from what the site allows.

Whoever may start a run must not be able to name any callable. So a target must lie under one of
the site's prefixes or in a module of the recipe's `code` folders (which the site must allow), and
what it resolves to must be defined there: a module that another module happens to import is out
of reach.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate

from headrace.errors import HeadraceError, TargetError, UserCodeError, nearest
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import allowed_path, is_under, not_allowed, target_names


@dataclass(frozen=True)
class Allowed:
    """What targets may name.

    Use `Allowed.of`, which also puts the code folders on the module path.
    """

    prefixes: tuple[str, ...]
    """Dotted prefixes that the site allows."""
    code: tuple[Path, ...] = ()
    """Folders of user code, resolved."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site) -> Allowed:
        """What a recipe may name on a site; puts the recipe's code folders on the module path.

        Raises:
            TargetError: The site does not allow a code folder, or it does not exist.
        """
        folders = tuple(check_code(folder, site) for folder in recipe.code)
        for folder in reversed(folders):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        return cls(prefixes=site.allowed_targets, code=folders)

    def covers(self, name: str) -> bool:
        """Whether a dotted name lies under a prefix or in a module of the code folders."""
        return is_under(name, self.prefixes) or self.in_code(name.partition(".")[0])

    def in_code(self, top: str) -> bool:
        """Whether a top-level module is the one in a code folder, not another of that name."""
        if not self.code:
            return False
        module = sys.modules.get(top)
        spec = module.__spec__ if module is not None else importlib.util.find_spec(top)
        if spec is None:
            return False
        found = spec.origin if spec.has_location else None
        places = [found] if found else list(spec.submodule_search_locations or ())
        return bool(places) and all(
            any(_is_under(Path(place), folder) for folder in self.code) for place in places
        )


def check_code(folder: str, site: Site) -> Path:
    """A folder or file of user code, resolved.

    Raises:
        TargetError: It does not exist or the site does not allow it.
    """
    path = allowed_path(folder, site)
    if not path.exists():
        raise TargetError(f"The code {path} does not exist", "Correct 'code' of the recipe.")
    return path


def instantiate(
    target: Target | Mapping[str, Any], allowed: Allowed, *, partial: bool = False
) -> Any:
    """Make the object that a target describes, with Hydra.

    Args:
        target: `_target_` and keyword arguments; these may hold further targets.
        allowed: What targets may name.
        partial: Give a callable that still takes keyword arguments.

    Raises:
        TargetError: A name is not allowed or does not exist.
        UserCodeError: The code raised.
    """
    config = target.as_config() if isinstance(target, Target) else dict(target)
    for name in target_names(config):
        resolve(name, allowed)
    config.setdefault("_convert_", "all")
    if partial:
        config["_partial_"] = True
    try:
        return hydra_instantiate(config)
    except (InstantiationException, SystemExit) as error:
        cause = error.__cause__ or error
        if isinstance(cause, HeadraceError):
            raise cause from None
        trace = "".join(traceback.format_exception(cause))
        raise UserCodeError(
            f"{config['_target_']} could not be made: {type(cause).__name__}: {cause}",
            "Check its arguments in the recipe.",
            trace=trace,
        ) from error


def resolve(name: str, allowed: Allowed) -> Any:
    """The object of a dotted name.

    Raises:
        TargetError: The name is not allowed or does not exist.
        UserCodeError: Importing its module raised.
    """
    parts = name.split(".")
    if not all(part.isidentifier() and not part.startswith("_") for part in parts):
        raise TargetError(f"'{name}' is no dotted name of public names")
    if not allowed.covers(name):
        raise not_allowed(name, allowed.prefixes, allowed.code)
    module, rest = _import_longest(parts)
    found: Any = module
    for part in rest:
        owner, found = found, getattr(found, part, None)
        if found is None:
            raise TargetError(f"'{name}' does not exist", _nearest_of(owner, part))
        if isinstance(found, ModuleType):
            raise not_allowed(name, allowed.prefixes, allowed.code)
    defined_in = getattr(found, "__module__", None) or module.__name__
    if not allowed.covers(defined_in):
        raise not_allowed(f"{defined_in}.{parts[-1]}", allowed.prefixes, allowed.code)
    if not callable(found):
        raise TargetError(f"'{name}' is no class or function but a {type(found).__name__}")
    return found


def _import_longest(parts: Sequence[str]) -> tuple[ModuleType, Sequence[str]]:
    module: ModuleType | None = None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f"{error.name}."):
                raise _import_failed(name, error) from error
            if module is None:
                raise TargetError(
                    f"There is no module '{name}'",
                    "Install it, or name its folder in 'code' of the recipe.",
                ) from None
            return module, parts[end - 1 :]
        except (Exception, SystemExit) as error:
            raise _import_failed(name, error) from error
    if module is None:
        raise TargetError("An empty name was given as _target_")
    return module, ()


def _import_failed(name: str, error: BaseException) -> UserCodeError:
    return UserCodeError(
        f"Importing {name} raised {type(error).__name__}: {error}",
        "Correct the module; it must import on the nodes that train.",
        trace="".join(traceback.format_exception(error)),
    )


def _nearest_of(owner: Any, part: str) -> str:
    public = [name for name in dir(owner) if not name.startswith("_")]
    hint = nearest(part, public)
    where = getattr(owner, "__name__", str(owner))
    return f"{hint.split('Valid:')[0]}See the names in {where}."


def _is_under(path: Path, folder: Path) -> bool:
    resolved = path.resolve()
    return resolved == folder or folder in resolved.parents
