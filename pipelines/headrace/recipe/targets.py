"""Which `_target_` and which code a site allows, as far as names and paths can tell.

What a name resolves to is judged again where it is imported, in `headrace.data.targets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import TargetError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site


def check_targets(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that names code which the site does not allow; imports nothing.

    Raises:
        TargetError: A `_target_`, a code folder or the training script is not allowed.
    """
    folders = tuple(allowed_path(folder, site) for folder in recipe.code)
    if recipe.train.script is not None:
        allowed_path(recipe.train.script, site)
    for name in target_names(recipe.model_dump(by_alias=True)):
        if not is_under(name, site.allowed_targets) and not _may_lie_in(folders, name):
            raise not_allowed(name, site.allowed_targets, folders)


def target_names(config: object) -> Iterator[str]:
    """Every `_target_` in nested mappings and sequences."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield str(config["_target_"])
        for value in config.values():
            yield from target_names(value)
    elif isinstance(config, Sequence) and not isinstance(config, str):
        for value in config:
            yield from target_names(value)


def is_under(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


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


def not_allowed(name: str, prefixes: Sequence[str], code: Sequence[Path]) -> TargetError:
    """The error for a target that the site does not allow.

    Args:
        name: The target.
        prefixes: What the site allows.
        code: Folders of user code, which are allowed as well.
    """
    modules = f"; modules in {', '.join(map(str, code))}" if code else ""
    return TargetError(
        f"The site does not allow the target '{name}'",
        f"Allowed: {', '.join(prefixes)}{modules}. Add the module to 'allowed_targets' of "
        "the site, or put your code below one of its 'allowed_code' folders and name that folder "
        "in 'code' of the recipe.",
    )


def _may_lie_in(folders: Sequence[Path], name: str) -> bool:
    """Whether a module may come from the code folders; those not seen from here may hold it."""
    top = name.partition(".")[0]
    return any(
        not folder.is_dir() or (folder / top).is_dir() or any(folder.glob(f"{top}.*"))
        for folder in folders
    )
