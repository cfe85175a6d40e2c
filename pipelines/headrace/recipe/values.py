"""Whether a value of a recipe can be what an argument asks for; pure.

Only what cannot be meant is refused: whole numbers, truth values and `null` go everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NUMBERS = re.compile(r"\s*[-+.\deE]*\d[-+.\deE]*\s*(,\s*[-+.\deE]*\d[-+.\deE]*\s*)+")


def does_not_fit(value: object, types: frozenset[str]) -> bool:
    """Whether a value is surely none of the plain types; never so where there are none."""
    if not types or value is None or isinstance(value, int):
        return False
    if isinstance(value, float):
        return not types & {"float", "str"}
    if isinstance(value, str):
        return "str" not in types
    return isinstance(value, Sequence | Mapping) and "_target_" not in value


def is_list_of_numbers(value: object) -> bool:
    """Whether somebody has written several numbers, as in `model.lr=0.1,0.01`."""
    if isinstance(value, str):
        return _NUMBERS.fullmatch(value) is not None
    is_list = isinstance(value, Sequence) and bool(value)
    return is_list and all(isinstance(each, int | float) for each in value)  # type: ignore[attr-defined]
