"""Whatever the bytes: an array, or a reason."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from headrace.errors import UnreadableError, UserError
from headrace.fields import array, image
from headrace.fields.array import decode_array, decode_arrays
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
