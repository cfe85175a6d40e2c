"""Entry points: what other packages add to headrace, by group and name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headrace.errors import UserError


@cache
def load_group(group: str) -> Mapping[str, Any]:
    """Return what packages add under a group of entry points, by name; loaded once a process.

    Raises:
        UserError: An entry point cannot be loaded; the message names its package.
    """
    return {each.name: _loaded(each) for each in sorted(entry_points(group=group))}


@cache
def names_in(group: str) -> tuple[str, ...]:
    """Return the names that packages add under a group, without loading them."""
    return tuple(sorted({each.name for each in entry_points(group=group)}))


@cache
def load_entry(group: str, name: str) -> Any:
    """Load and return the one entry of a group with that name.

    Raises:
        UserError: The entry cannot be loaded; the message names its package.
    """
    *_, found = sorted(entry_points(group=group, name=name))
    return _loaded(found)


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.module
        raise UserError(
            f"Entry point '{entry.name}' of {entry.group} cannot be loaded: {entry.value} of the "
            f"package {package} raised {type(error).__name__}: {error}",
            f"Reinstall the package, or remove it: pip uninstall {package}.",
        ) from error
