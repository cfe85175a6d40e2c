"""Arrays of numbers: `.npy` files, and `.npz` files of several."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from headrace.errors import UnreadableError
from headrace.fields.field_kind import Decoded, Kind, Shape, Value

ARCHIVE = ".npz"
"""Ending of a file of several arrays."""

MAX_ARCHIVE_BYTES = 4 * 2**30
"""Bytes of arrays beyond which an archive is taken for a decompression bomb."""

_BAD_HEADER = (ValueError, TypeError, SyntaxError, EOFError, struct.error, TokenError, MemoryError)
_BAD_ARCHIVE = (
    OSError, ValueError, EOFError, LookupError, TypeError, OverflowError, struct.error, zlib.error,
    zipfile.BadZipFile, NotImplementedError, RuntimeError,
)  # fmt: skip


class ArrayKind(Kind):
    """Numbers of any shape."""

    name = "array"
    plural = "arrays"
    suffixes = (".npy",)
    encodings = ("npy",)
    types = (np.ndarray,)
    options = ("dtype", "mixed", "codec", "chunk_samples")
    keep = "decode"
    varies = False
    is_plain = True

    def read(self, content: bytes, dtype: str) -> Value:
        return decode_array(content)

    def decode(self, content: bytes) -> NDArray[Any]:
        return decode_array(content)

    def to_array(self, value: Value, shape: Shape) -> Decoded:
        return Decoded(np.asarray(value))


def is_of_numbers(dtype: np.dtype[Any]) -> bool:
    """Whether a field may have this dtype: booleans, and numbers as PyTorch has them."""
    if dtype.kind == "c":
        return dtype.itemsize <= 16
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def decode_array(content: bytes) -> NDArray[Any]:
    """Array of a `.npy` file, in C order and little-endian; pickled objects are never loaded.

    Raises:
        UnreadableError: Empty, damaged, or not of booleans or numbers.
    """
    if not content:
        raise UnreadableError("the file is empty")
    try:
        header, start = _header_bytes(content)
        shape, fortran_order, dtype, num_bytes = _npy_header(header)
    except _BAD_HEADER as error:
        raise UnreadableError(f"no .npy file: {error}") from error
    if not is_of_numbers(dtype):
        raise UnreadableError(f"dtype {dtype} is neither boolean nor a number of up to 16 bytes")
    found_bytes = len(content) - start
    if num_bytes != found_bytes:
        raise UnreadableError(
            f"{'truncated' if num_bytes > found_bytes else 'damaged'}: shape {shape} of {dtype} "
            f"takes {num_bytes:,} bytes, {found_bytes:,} are there"
        )
    flat = np.frombuffer(content, dtype=dtype, offset=start)
    array = flat.reshape(shape, order="F" if fortran_order else "C")
    if dtype.byteorder == ">" or fortran_order:
        return np.ascontiguousarray(array, dtype=dtype.newbyteorder("<")).reshape(shape)
    return array


def plain_header(content: bytes, num_bytes: int) -> tuple[bytes, NDArray[Any]] | None:
    """The header of a `.npy` file after which lie the bytes of the array that `decode_array` gives.

    Also returns an array of the same shape and dtype whose values do not count; None if the bytes
    lie there in another order, or the array cannot be read.
    """
    try:
        header, start = _header_bytes(content)
        shape, fortran_order, dtype, body_bytes = _npy_header(header)
    except _BAD_HEADER:
        return None
    plain = is_of_numbers(dtype) and dtype.byteorder != ">"
    if fortran_order or not plain or start + body_bytes != num_bytes or len(content) < start:
        return None
    return header, np.broadcast_to(np.zeros((), dtype), shape)


def decode_arrays(content: bytes, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays of a `.npz` file by name; `names` must be all of these, if there are any.

    Raises:
        UnreadableError: Damaged, too large, or of other arrays.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not members:
                raise UnreadableError("it holds no array")
            if names and set(names) != set(members):
                raise UnreadableError(
                    f"arrays {', '.join(sorted(members))} in place of {', '.join(sorted(names))}"
                )
            if len(members) < len(archive.infolist()):
                raise UnreadableError("two of its arrays have one name")
            num_bytes = sum(info.file_size for info in members.values())
            if num_bytes > MAX_ARCHIVE_BYTES:
                raise UnreadableError(f"{num_bytes:,} bytes are more than {MAX_ARCHIVE_BYTES:,}")
            return {name: decode_array(archive.read(members[name])) for name in names or members}
    except _BAD_ARCHIVE as error:
        raise UnreadableError(f"no .npz file: {error}") from error


def _header_bytes(content: bytes) -> tuple[bytes, int]:
    """The header of a `.npy` file with its magic, and where the values begin."""
    if content[:6] != b"\x93NUMPY" or len(content) < 12:
        raise ValueError("it does not begin as one")
    if content[6:8] == b"\x01\x00":
        start = 10 + int(struct.unpack_from("<H", content, 8)[0])
    else:
        start = 12 + int(struct.unpack_from("<I", content, 8)[0])
    return content[: min(start, 2**16)], start


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, dtype and bytes of the values."""
    stream = io.BytesIO(header)
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran_order, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran_order, dtype = npy.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version} is not supported")
    return shape, fortran_order, dtype, math.prod(shape) * dtype.itemsize
