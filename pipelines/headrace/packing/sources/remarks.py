"""What people should look at in columns of rows: likely ids, and paths of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.fields.field_kind import Value

LOOKED_AT = 256
"""Rows of which the values are looked at."""

_FEWEST = 20  # values that are all different, so that this is no chance


def remark_on(values: Sequence[Value], folder: Path | None) -> str:
    """What is odd about the first values of a column; empty for nothing.

    Args:
        values: Texts or numbers of one type.
        folder: The folder of the source, if it is local.
    """
    if not values:
        return ""
    texts = [value for value in values if isinstance(value, str)]
    if texts and folder is not None and all(_is_file(folder, text) for text in texts):
        return "paths of files: name the table in dataset.index to pack the files"
    if len(values) < _FEWEST or len({*map(str, values)}) < len(values):
        return ""
    are_whole = all(isinstance(value, int) for value in values)
    if are_whole or all(text.strip("+-").isdecimal() for text in texts or ["?"]):
        return "all different: ids?"
    return ""


def _is_file(folder: Path, text: str) -> bool:
    try:
        return bool(text) and (folder / text).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False
