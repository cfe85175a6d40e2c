"""Entry points: what other packages add to headrace, by group and name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headrace.errors import UserError


@cache
def load_group(group: str) -> Mapping[str, Any]:
    """What packages add under a group of entry points, by name, loaded once a process.

    Raises:
        UserError: One cannot be loaded; it names the package.
    """
    return {each.name: _loaded(each) for each in sorted(entry_points(group=group))}


@cache
def names_in(group: str) -> tuple[str, ...]:
    """Names of what packages add under a group, which is not loaded."""
    return tuple(sorted({each.name for each in entry_points(group=group)}))


@cache
def load_entry(group: str, name: str) -> Any:
    """What a package adds under a group by that name; others of the group are not loaded.

    Raises:
        UserError: It cannot be loaded; it names the package.
    """
    *_, found = sorted(entry_points(group=group, name=name))
    return _loaded(found)


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.module
        raise UserError(
            f"The package {package} adds '{entry.name}' to {entry.group} by {entry.value}, "
            f"which cannot be loaded: {type(error).__name__}: {error}",
            f"Install it anew, or remove it: pip uninstall {package}.",
        ) from error
