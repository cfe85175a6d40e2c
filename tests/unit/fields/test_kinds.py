"""Whatever the bytes: an array, or a reason; numbers in another dtype are equal, or refused."""

from __future__ import annotations

import io
import itertools
import math
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype
from PIL import Image

from headrace.errors import UnreadableError, UserError
from headrace.fields import array, image
from headrace.fields.array import decode_array, decode_arrays
from headrace.fields.exact import exact
from headrace.fields.field_kind import kind_named, kind_of_bytes, kind_of_encoding
from headrace.fields.image import read_image
from support.source_files import npy

NOISE = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def test_pixels_are_kept() -> None:
    for kind in ("PNG", "BMP", "TIFF"):
        np.testing.assert_array_equal(
            read_image(encoded(Image.fromarray(NOISE), kind)).array, NOISE
        )
    alpha = np.dstack([NOISE, NOISE[:, :, 0]])
    np.testing.assert_array_equal(read_image(encoded(Image.fromarray(alpha), "PNG")).array, NOISE)
    bits = Image.fromarray(NOISE[:, :, 0] > 127)
    assert set(np.unique(read_image(encoded(bits, "PNG")).array)) == {0, 255}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF"])
def test_encodings(kind: str) -> None:
    name = kind.lower()
    content = encoded(Image.fromarray(NOISE), kind)
    found = kind_of_bytes(content)
    for check in (True, False):
        assert found.encode(content, "uint8", check=check)[:2] == (content, name)
    assert (found.name, kind_of_encoding(name).name) == ("image", "image")


def png_of_size(width: int, height: int, depth: int = 8) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    body = zlib.compress(b"\0")
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello", "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"),
        (png_of_size(0, 4), "."),
    ],
)
def test_unreadable_images(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        read_image(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF"])
def test_no_damage_raises_anything_else(kind: str) -> None:
    content = encoded(Image.fromarray(NOISE), kind)
    damaged = [content[:length] for length in range(0, len(content), 3)]
    for position in range(0, len(content), 2):
        flipped = bytearray(content)
        flipped[position] ^= 0x55
        damaged.append(bytes(flipped))
    reasons = 0
    for each in damaged:
        try:
            assert read_image(each).array.dtype == np.uint8
        except UnreadableError:
            reasons += 1
    assert reasons > len(content) // 5


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">f4"),
        np.float64(3.5),
        np.zeros((0, 3), dtype=bool),
        np.array([[1 + 2j]], dtype=">c8"),
    ],
)
def test_arrays(array: np.ndarray) -> None:
    found = decode_array(npy(array))
    np.testing.assert_array_equal(found, array)
    assert found.shape == np.shape(array)
    assert found.flags.c_contiguous
    assert found.dtype == np.asarray(array).dtype.newbyteorder("<")


def test_arrays_of_an_archive() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3, dtype=np.int8)}
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)
        content = buffer.getvalue()
        for names in ((), ("b", "a")):
            found = decode_arrays(content, names)
            assert list(found) == list(names or arrays)
            for name, values in found.items():
                np.testing.assert_array_equal(values, arrays[name])
        with pytest.raises(UnreadableError, match="arrays a, b in place of a, c"):
            decode_arrays(content, ("a", "c"))
        for length in range(0, len(content), 7):
            with pytest.raises(UnreadableError):
                decode_arrays(content[:length])
        flipped = bytearray(content)
        flipped[content.index(b"NUMPY") + 130 if save is np.savez else 60] ^= 0x55
        with pytest.raises(UnreadableError, match=r"no .npz file"):
            decode_arrays(bytes(flipped))


def test_archive_that_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array, "MAX_ARCHIVE_BYTES", 2**20)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(2**18))
    assert len(buffer.getvalue()) < 10_000
    with pytest.raises(UnreadableError, match=r"2,097,280 bytes are more than 1,048,576"):
        decode_arrays(buffer.getvalue())


def npy_with_header(header: str) -> bytes:
    text = header.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\x93NUMPY", "no .npy file"),
        (npy(np.arange(6.0)) + b"x", "49 are there"),
        (npy(np.array([{}], dtype=object)), "dtype object"),
        (npy(np.array([1j], dtype=np.clongdouble)), "dtype complex256"),
        (
            npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15, 9), }"),
            "no .npy file",
        ),
        (
            npy_with_header(
                "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 9), }"
            ),
            "truncated",
        ),
        (npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"), "."),
    ],
)
def test_unreadable_arrays(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        decode_array(content)


def test_pickles_are_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(UnreadableError):
        decode_array(npy(np.array([object()], dtype=object)))


def test_limit_is_that_of_pillow() -> None:
    assert image.MAX_PIXELS == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"fLaC", "audio"), (b"RIFF\0\0\0\0WAVE", "audio"), (b"RIFF\0\0\0\0AVI ", "bytes"),
        (b"", "bytes"), (b"hello", "bytes"),
    ],
)  # fmt: skip
def test_what_the_first_bytes_say(content: bytes, name: str) -> None:
    assert kind_of_bytes(content).name == name


def test_a_kind_that_nothing_here_knows_says_what_to_install() -> None:
    for find in (kind_named, kind_of_encoding):
        with pytest.raises(UserError, match=r"(?s)'cloud'.*headrace\.fields.*on every node"):
            find("cloud")


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
