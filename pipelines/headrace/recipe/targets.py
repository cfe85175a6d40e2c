"""Which `_target_` and which code a site allows, as far as names, paths and source can tell.

What a name resolves to is judged again where it is imported, in `headrace.data.targets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import TargetError
from headrace.recipe.kinds import Use, is_listed, is_under, targets_of, uses
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site


def check_targets(recipe: Recipe, site: Site, *, only: str = "") -> None:
    """Refuse a recipe that names code which the site does not allow; imports nothing.

    Args:
        recipe: The recipe.
        site: The site.
        only: The one key whose target counts; empty for all.

    Raises:
        TargetError: A `_target_`, a code folder or the training script is not allowed.
    """
    folders = tuple(allowed_path(folder, site) for folder in recipe.code)
    if recipe.train.script is not None and not only:
        allowed_path(recipe.train.script, site)
    for key, target in targets_of(recipe).items():
        for use in uses(key, target.as_config()) if only in ("", key) else ():
            if not is_listed(use.name, site.allowed_targets) and not _may_lie_in(folders, use.name):
                check_package(use, site.allowed_targets, folders)
    for use in uses("trainer.extra", recipe.trainer.extra):
        raise TargetError(
            f"{use.key} names the target '{use.name}', but 'trainer.extra' holds plain values",
            "Callbacks go to 'trainer.callbacks', loggers to 'trainer.loggers'.",
        )


def check_package(use: Use, listed: Sequence[str], code: Sequence[Path] = ()) -> None:
    """Refuse a name that lies in none of the packages that belong where it stands.

    Args:
        use: The target.
        listed: What the site allows.
        code: Folders of user code, for the message.

    Raises:
        TargetError: It does not.
    """
    if not any(is_under(use.name, (kind.names,)) for kind in use.kinds if kind.names):
        raise not_allowed(use, use.name, listed, code)


def allowed_path(code: str, site: Site) -> Path:
    """A folder or file of user code, resolved; whether it exists is not looked at.

    Raises:
        TargetError: The site does not allow it.
    """
    path = Path(code).expanduser().resolve()
    roots = [Path(root).expanduser().resolve() for root in site.allowed_code]
    if not any(path.is_relative_to(root) for root in roots):
        allowed = ", ".join(str(root) for root in roots) or "none"
        raise TargetError(
            f"Site '{site.name}' does not allow code from {path}",
            f"Allowed folders: {allowed}. Move the code there, or add its folder to "
            "'allowed_code' of the site.",
        )
    return path


def not_allowed(
    use: Use, name: str, listed: Sequence[str], code: Sequence[Path] = ()
) -> TargetError:
    """The error for a target that the site does not allow.

    Args:
        use: The target.
        name: What it names, or what that is an alias of.
        listed: What the site allows.
        code: Folders of user code, which are allowed as well.
    """
    kinds = [kind.name for kind in use.kinds]
    modules = [f"modules in {folder}" for folder in code]
    return TargetError(
        f"The site does not allow the target '{name}' at {use.key}",
        f"Allowed there: {'; '.join([*kinds, *listed, *modules])}. Add the name to "
        "'allowed_targets' of the site, or put your code below one of its 'allowed_code' folders "
        "and name that folder in 'code' of the recipe.",
    )


def no_attribute(use: Use) -> TargetError:
    """The error for a method, or another attribute of a class or function."""
    return TargetError(
        f"'{use.name}' at {use.key} is an attribute, not a class or function of a module",
        "Name the class itself, or write a function in a module of yours.",
    )


def _may_lie_in(folders: Sequence[Path], name: str) -> bool:
    """Whether a module may come from the code folders; those not seen from here may hold it."""
    top = name.partition(".")[0]
    return any(
        not folder.is_dir() or (folder / top).is_dir() or any(folder.glob(f"{top}.*"))
        for folder in folders
    )
