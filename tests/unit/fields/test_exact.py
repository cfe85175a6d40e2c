"""Numbers to another dtype: equal to what they were, or refused."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype

from headrace.errors import UnreadableError
from headrace.fields.exact import exact
from headrace.fields.field_kind import kind_named

DTYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
        "float32", "float64", "complex64", "complex128",
    )
]  # fmt: skip
PAIRS = list(itertools.product(DTYPES, DTYPES))


def number(value: object) -> complex | Fraction | float:
    """A value as Python computes with it, without any rounding."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, complex):
        return item
    return Fraction(item) if math.isfinite(item) else float(item)


def is_in(value: object, dtype: np.dtype) -> bool:
    """Whether a dtype has a number, by its definition and not by NumPy's conversion."""
    found = number(value)
    if isinstance(found, complex):
        return dtype.kind == "c"
    if isinstance(found, float):
        return dtype.kind in "fc"
    if dtype.kind == "b":
        return found in (0, 1)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return found.denominator == 1 and limits.min <= found <= limits.max
    limits = np.finfo(dtype)
    if abs(found) > Fraction(float(limits.max)):
        return False
    mantissa = abs(found.numerator)
    while mantissa and mantissa % 2 == 0:
        mantissa //= 2
    return mantissa.bit_length() <= limits.nmant + 1


def is_nearest(result: np.floating, value: np.floating) -> bool:
    """Whether no neighbour of a floating point number is nearer to a value."""
    if not np.isfinite(value):
        return bool(np.array_equal(result, value, equal_nan=True))
    with np.errstate(over="ignore"):
        beside = (np.nextafter(result, result.dtype.type(end)) for end in (-math.inf, math.inf))
        finite = [Fraction(float(number)) for number in beside if np.isfinite(number)]
    exact_value = Fraction(float(value))
    far = abs(Fraction(float(result)) - exact_value)
    return all(far <= abs(number - exact_value) for number in finite)


def edges(dtype: np.dtype) -> st.SearchStrategy:
    """Values of a dtype, many of them beside the limits of others."""
    near = [
        sign * (2**power + more)
        for power in (0, 7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64)
        for more in (-1, 0, 1)
        for sign in (-1, 1)
    ]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [value for value in near if limits.min <= value <= limits.max]
    elif dtype.kind == "b":
        near = [0, 1]
    with np.errstate(over="ignore"):
        special = np.array(near, dtype=object).astype(dtype)
    return st.one_of(st.sampled_from(list(special)), from_dtype(dtype))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda dtype: dtype.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_equal_or_refused(source: np.dtype, target: np.dtype, data: st.DataObject) -> None:
    values = data.draw(arrays(source, st.sampled_from([(), (1,), (2, 2)]), elements=edges(source)))
    rounds = source.kind + target.kind in ("ff", "fc", "cc")
    try:
        found = exact(values, target)
    except UnreadableError:
        if rounds:  # only what is beyond the largest number
            with np.errstate(over="ignore"):
                pairs = [(part(values), part(values.astype(target))) for part in (np.real, np.imag)]
            assert any((np.isfinite(a) & ~np.isfinite(b)).any() for a, b in pairs)
        elif source.kind == "c":
            assert target.kind != "c"
        else:
            assert not all(is_in(value, target) for value in values.flat)
        return
    assert (found.dtype, found.shape) == (target, values.shape)
    for value, result in zip(values.flat, found.flat, strict=True):
        if rounds:
            assert is_nearest(np.real(result), np.real(value))
            assert is_nearest(np.imag(result), np.imag(value))
        elif value != value:
            assert result != result
        else:
            assert is_in(value, target)
            assert number(result) == number(value) or result == value


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (0.7, "int64", "0.7 does not fit int64"),
        (2**53 + 1, "float64", "9007199254740993 does not fit float64"),
        (np.int64(2**63 - 1), "float32", "9223372036854775807 does not fit float32"),
        (16_777_217, "float32", "16777217 does not fit float32"),
        (1e39, "float32", "does not fit float32"),
        (2, "bool", "2 does not fit bool"),
        (0.5, "bool", "0.5 does not fit bool"),
        (float("nan"), "int8", "nan does not fit int8"),
        (-1, "uint64", "-1 does not fit uint64"),
        (2**70, "int64", "do not fit int64"),
        (1j, "float64", "complex numbers do not fit float64"),
        ("1", "int64", "do not fit int64"),
    ],
)
def test_reasons(value: object, dtype: str, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        exact(value, dtype)


def test_a_fraction_is_rounded_to_the_nearest() -> None:
    assert exact(0.1, "float32") == np.float32(0.1)
    assert exact(1e-60, "float16") == 0
    assert math.isinf(exact(math.inf, "float16"))


def test_texts_of_numbers() -> None:
    kind = kind_named("value")
    assert kind.read(b" 7\n", "float64") == 7.0
    assert kind.read(b"7", "int64") == 7
    assert kind.read(b"0.1", "float64") == 0.1
    with pytest.raises(UnreadableError, match="9007199254740993 does not fit float64"):
        kind.read(b"9007199254740993", "float64")


def test_an_overflow_beside_infinity_is_refused():
    with pytest.raises(UnreadableError):
        exact(complex(1e39, math.inf), "complex64")
