"""Glob patterns over paths with `/`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PARTS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])")
_SPECIAL = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


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
