"""Conversion of numbers to another dtype: exact, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headrace.errors import UnreadableError


def exact(values: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    """Return numbers or booleans as a dtype, equal to what they were.

    A fraction becomes a narrower floating point number by rounding to the nearest: the dtype asks
    for that. All else is exact: whole numbers in a floating point type, fractions that are whole,
    0 and 1 as booleans.

    Args:
        values: Of any shape.
        dtype: Boolean, whole, floating point or complex.

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
        fits = _fits(array, found)
    if not np.all(fits):
        raise UnreadableError(f"{array[~fits].flat[0]} does not fit {target}")
    return found


def _fits(values: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_] | np.bool_:
    """Whether each value was converted well."""
    kinds = values.dtype.kind + found.dtype.kind
    if kinds[0] == "b":
        return np.True_
    if kinds[1] == "b":
        return np.asarray((values == 0) | (values == 1))
    if kinds[0] in "fc":
        if kinds[1] in "fc":
            return np.asarray(np.isfinite(found) | ~np.isfinite(values))
        limits = np.iinfo(found.dtype)
        wide = values.astype(np.float64)
        inside = (wide >= limits.min) & (wide < limits.max + 1)
        return np.asarray(inside & (np.trunc(wide) == wide))
    if kinds[1] in "fc":  # beyond the limit, the way back is undefined
        wide = found.real.astype(np.float64)
        inside = np.isfinite(wide) & (wide < float(np.iinfo(values.dtype).max + 1))
        return np.asarray(inside & (found.real.astype(values.dtype) == values))
    return np.asarray((found.astype(values.dtype) == values) & ((found < 0) == (values < 0)))
