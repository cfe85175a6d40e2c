"""Entry points: what other packages add to headrace, by group and name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from headrace.errors import UserError


@cache
def load_group(group: str) -> Mapping[str, Any]:
    """What packages add under a group of entry points, by name, loaded once a process.

    Raises:
        UserError: One cannot be loaded; it names the package.
    """
    found = {}
    for each in sorted(entry_points(group=group)):
        try:
            found[each.name] = each.load()
        except Exception as error:
            package = each.dist.name if each.dist is not None else each.module
            raise UserError(
                f"The package {package} adds '{each.name}' to {group} by {each.value}, "
                f"which cannot be loaded: {type(error).__name__}: {error}",
                f"Install it anew, or remove it: pip uninstall {package}.",
            ) from error
    return found
