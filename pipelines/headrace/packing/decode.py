"""Bytes of a source file to an array, or the reason why not."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 89_478_485
"""Pixels beyond which an image is taken for a decompression bomb, as by Pillow's warning."""

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png")
"""Endings, in lower case, of files that are images."""

ARRAY_SUFFIXES = (".npy",)
"""Endings, in lower case, of files that are arrays."""

_MAGIC = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"BM")
_PNG_DEPTH = 24  # byte of a PNG file that tells the bits a channel
_FORMATS = ("PNG", "JPEG", "BMP")
_ENCODINGS = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg", "BMP": "bmp"}
_MODES = {
    "1": "L", "L": "L", "LA": "L", "La": "L",
    "RGB": "RGB", "RGBA": "RGB", "RGBa": "RGB", "RGBX": "RGB", "P": "RGB", "PA": "RGB",
    "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
}  # fmt: skip

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip


class UnreadableError(Exception):
    """A sample that cannot be packed; the message is the reason."""


def decode_image(content: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG, JPEG or BMP file.

    Grey images give `(height, width)`, all others `(height, width, 3)` red, green, blue. Alpha is
    dropped, palettes are looked up, pixels keep the orientation they are stored in.

    Raises:
        UnreadableError: Empty, damaged, too large, or of more than 8 bits a channel.
    """
    with _open_image(content) as image:
        mode = _MODES.get(image.mode)
        if mode is None:
            raise UnreadableError(
                f"pixels of mode '{image.mode}' do not fit 8 bits; save the images as .npy"
            )
        try:
            return np.asarray(image.convert(mode) if image.mode != mode else image).copy()
        except _DAMAGED as error:
            raise UnreadableError(f"damaged image: {error}") from error


def check_image(content: bytes) -> str:
    """Make sure that an image can be decoded.

    Returns:
        Its encoding: `png`, `jpeg` or `bmp`.

    Raises:
        UnreadableError: As `decode_image`.
    """
    decode_image(content)
    with _open_image(content) as image:
        return _ENCODINGS[image.format or ""]


def decode_array(content: bytes) -> NDArray[Any]:
    """Array of a `.npy` file, in C order and little-endian; pickled objects are never loaded.

    Raises:
        UnreadableError: Empty, damaged, or not of booleans, integers or floating point numbers.
    """
    if not content:
        raise UnreadableError("the file is empty")
    stream = io.BytesIO(content)
    try:
        shape, fortran_order, dtype = _npy_header(stream)
    except (ValueError, TypeError, SyntaxError, EOFError, UnicodeDecodeError) as error:
        raise UnreadableError(f"no .npy file: {error}") from error
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise UnreadableError(f"dtype {dtype} is neither boolean, integer nor floating point")
    expected_bytes = dtype.itemsize
    for size in shape:
        expected_bytes *= size
    found_bytes = len(content) - stream.tell()
    if expected_bytes != found_bytes:
        raise UnreadableError(
            f"truncated: shape {shape} of {dtype} takes {expected_bytes:,} bytes, "
            f"{found_bytes:,} are there"
        )
    flat = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    array = flat.reshape(shape, order="F" if fortran_order else "C")
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("<")).reshape(shape)


def _open_image(content: bytes) -> Image.Image:
    if not content:
        raise UnreadableError("the file is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except UnidentifiedImageError:
        known = content.startswith(_MAGIC)
        reason = "damaged image: cut or broken header" if known else "neither PNG, JPEG nor BMP"
        raise UnreadableError(reason) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError(str(error)) from error
    except _DAMAGED as error:
        raise UnreadableError(f"damaged image: {error}") from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UnreadableError(f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
    if image.format == "PNG" and content[_PNG_DEPTH] > 8:  # Pillow would round colours silently
        raise UnreadableError(f"{content[_PNG_DEPTH]} bits a channel; save the images as .npy")
    return image


def _npy_header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise ValueError(f"version {version} is not supported")
