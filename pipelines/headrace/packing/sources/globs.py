"""Glob patterns over paths with `/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_PARTS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])")
_ENDING = re.compile(r"\*\*/\*\.([a-z0-9]+)", re.IGNORECASE)
_SPECIAL = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matcher(globs: Sequence[str]) -> Callable[[str], object]:
    """Tells whether a path matches a glob, as the pattern of `any_of` does, or faster.

    Args:
        globs: Patterns; those of the form `**/*.suffix` only are looked up.
    """
    endings = {f".{match[1].lower()}" for glob in globs if (match := _ENDING.fullmatch(glob))}
    if len(endings) < len({glob.lower() for glob in globs}):
        return any_of(globs).fullmatch
    usual = tuple(endings)
    return lambda path: path.endswith(usual) or path.lower().endswith(usual)


def any_of(globs: Sequence[str]) -> re.Pattern[str]:
    """Pattern whose `fullmatch` tells whether a path matches a glob; letter case is ignored.

    Args:
        globs: Patterns; `**/` stands for any depth.
    """
    return re.compile("|".join(f"(?:{glob_regex(glob)})" for glob in globs), re.IGNORECASE)


def glob_regex(glob: str) -> str:
    """Regular expression for a glob pattern."""
    return "".join(_SPECIAL.get(part) or _literal(part) for part in _PARTS.split(glob))


def _literal(part: str) -> str:
    if part.startswith("[") and part.endswith("]"):
        inner = part[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(part)
