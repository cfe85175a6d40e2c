"""Match paths against glob patterns in linear time, by Rust's regular expressions of pydantic."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

_PARTS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])")
_ENDING = re.compile(r"\*\*/\*\.([a-z0-9]+)", re.IGNORECASE)
_SPECIAL = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_OPERATORS = re.compile(r"([\[&~\\^]|(?<!^)-(?=-))")
"""What means more in a set of Rust's than in one of a glob."""


def matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    """Matches paths against a glob, as `any_of` does, or faster."""
    endings = {f".{match[1].lower()}" for glob in globs if (match := _ENDING.fullmatch(glob))}
    if len(endings) < len({glob.lower() for glob in globs}):
        return any_of(globs)
    usual = tuple(endings)
    return lambda path: path.endswith(usual) or path.lower().endswith(usual)


def any_of(globs: Sequence[str]) -> Callable[[str], bool]:
    """Return a test whether a path matches one of the globs; raise ValueError if malformed."""
    regexes = ("".join(map(_regex, _PARTS.split(glob))) for glob in globs)
    pattern = rf"\A(?i:{'|'.join(regexes)})\z"
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        matches = SchemaValidator(schema).isinstance_python
    except SchemaError:
        if len(globs) > 1:
            for glob in globs:
                any_of([glob])  # raises for the malformed one
        raise ValueError(f"{', '.join(globs)[:200]!r} is not a glob pattern, or too long") from None
    # bytes of a name that are no UTF-8 are matched by wildcards
    return lambda path: matches(path if path.isascii() else path.encode(errors="replace").decode())


def _regex(part: str) -> str:
    if part in _SPECIAL:
        return _SPECIAL[part]
    if len(part) > 2 and part[0] + part[-1] == "[]" and part not in ("[!]", "[^]"):
        is_other = part[1] in "!^"
        inner = _OPERATORS.sub(r"\\\1", part[1 + is_other : -1])
        return f"[{'^' * is_other}{inner}]"
    return re.escape(part)


def _readable(globs: tuple[str, ...]) -> tuple[str, ...]:
    any_of(globs)
    return globs


Globs = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
    Field(max_length=256),
    AfterValidator(_readable),
]
"""Glob patterns: `**/` stands for any folders, `*` and `?` for what has no slash, `[…]` for one of
these characters, `[!…]` for another; letter case is ignored."""
