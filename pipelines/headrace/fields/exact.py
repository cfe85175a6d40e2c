"""Conversion of numbers to another dtype: exact, or an error."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headrace.errors import UnreadableError

WHOLE: Final = r"[+-]?(0|[1-9][0-9]*)"
"""Texts that are whole numbers, a regular expression for Python and RE2."""
NUMBER: Final = (
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(?i:nan|inf|infinity)"
)
"""Texts that are numbers."""

_WHOLE, _NUMBER = re.compile(WHOLE), re.compile(NUMBER)


def exact(values: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    """Return numbers or booleans of any shape as a dtype, equal to what they were.

    A fraction becomes a narrower floating point number by rounding to the nearest: the dtype asks
    for that. All else is exact: whole numbers in a floating point type, fractions that are whole,
    0 and 1 as booleans.

    Raises:
        UnreadableError: A value does not fit.
    """
    array, target = np.asarray(values), np.dtype(dtype)
    if array.dtype == target:
        return array
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and target.kind != "c"):
        noun = "complex numbers" if array.dtype.kind == "c" else f"{array.dtype} values"
        raise UnreadableError(f"{noun} do not fit {target}")
    with np.errstate(all="ignore"):
        found = array.astype(target)
    fits = fits_exactly(array, found)
    if not np.all(fits):
        raise UnreadableError(f"{array[~fits].flat[0]} does not fit {target}")
    return found


def number_of(text: str) -> int | float | None:
    """Return the number that a text says, whole or not; None if it is beyond float64, or none."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if math.isinf(number) and "n" not in text.lower():
        return None
    return int(text) if _WHOLE.fullmatch(text) else number


def fits_exactly(values: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_] | np.bool_:
    """Return whether each value was converted well, as `exact` understands it."""
    kinds = values.dtype.kind + found.dtype.kind
    if kinds[0] == "b":
        return np.True_
    if kinds[1] == "b":
        return np.asarray((values == 0) | (values == 1))
    with np.errstate(all="ignore"):
        if kinds[0] in "fc":
            if kinds[1] in "fc":
                pairs = ((each(found), each(values)) for each in (np.real, np.imag))
                both = [np.isfinite(part) | ~np.isfinite(whole) for part, whole in pairs]
                return np.asarray(both[0] & both[1])
            limits = np.iinfo(found.dtype)
            wide = values.astype(np.float64)
            inside = (wide >= limits.min) & (wide < limits.max + 1)
            return np.asarray(inside & (np.trunc(wide) == wide))
        if kinds[1] in "fc":  # beyond the limit, the way back is undefined
            wide = found.real.astype(np.float64)
            inside = np.isfinite(wide) & (wide < float(np.iinfo(values.dtype).max + 1))
            return np.asarray(inside & (found.real.astype(values.dtype) == values))
        return np.asarray((found.astype(values.dtype) == values) & ((found < 0) == (values < 0)))
