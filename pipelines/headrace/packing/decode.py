"""Bytes of images, sounds and numpy files to arrays, or the reason why not."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from headrace.packing.samples import FieldKind, UnreadableError
from headrace.shards.format import is_of_numbers

MAX_PIXELS = 89_478_485
"""Pixels beyond which an image is taken for a decompression bomb, as by Pillow's warning."""

MAX_ARCHIVE_BYTES = 4 * 2**30
"""Bytes of arrays beyond which an archive is taken for a decompression bomb."""

_IMAGE_MAGIC = {
    b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"BM": "bmp", b"RIFF": "webp",
    b"GIF8": "gif", b"II*\0": "tiff", b"MM\0*": "tiff",
}  # fmt: skip
_AUDIO_MAGIC = {b"RIFF": "wav", b"fLaC": "flac"}
_PNG_DEPTH = 24  # byte of a PNG file that tells the bits a channel
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
_ENCODINGS = {"MPO": "jpeg"} | {name: name.lower() for name in _FORMATS}
_MODES = {
    "1": "L", "L": "L", "LA": "L", "La": "L",
    "RGB": "RGB", "RGBA": "RGB", "RGBa": "RGB", "RGBX": "RGB", "P": "RGB", "PA": "RGB",
    "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
}  # fmt: skip

_UNKNOWN = "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError,
    struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, Warning,
)  # fmt: skip


def decode_image(content: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG, JPEG, BMP, WebP, GIF or TIFF file.

    Grey images give `(height, width)`, all others `(height, width, 3)` red, green, blue. Alpha is
    dropped, palettes are looked up, pixels keep the orientation they are stored in. Of an animation
    the first picture counts; a TIFF file of several pages is refused.

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
            image = image.convert(mode) if image.mode != mode else image
            pixels: NDArray[np.uint8] = np.asarray(image).copy()
        except _DAMAGED as error:
            raise UnreadableError(f"damaged image: {error}") from error
    return pixels


def image_encoding(content: bytes, *, check: bool) -> str:
    """Encoding of an image, told by its first bytes, or with `check` by decoding it.

    Raises:
        UnreadableError: It is no image; with `check` as `decode_image`.
    """
    if not check:
        return _by_magic(content, _IMAGE_MAGIC, "image")
    decode_image(content)
    with _open_image(content) as image:
        return _ENCODINGS[image.format or ""]


def decode_audio(content: bytes) -> tuple[NDArray[np.float32], int]:
    """Sound of a WAV or FLAC file.

    Returns:
        `(num_frames,)`, or `(num_frames, num_channels)` when there are several, from -1 to 1, and
        the samples a second.

    Raises:
        UnreadableError: Empty or damaged.
    """
    import soundfile

    try:
        sound, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise UnreadableError(f"damaged sound: {error}") from error
    return sound, int(rate)


def audio_encoding(content: bytes, *, check: bool) -> str:
    """Encoding of a sound, `wav` or `flac`; arguments and errors as of `image_encoding`."""
    encoding = _by_magic(content, _AUDIO_MAGIC, "sound")
    if check:
        decode_audio(content)
    return encoding


def kind_of_bytes(content: bytes) -> FieldKind:
    """Kind of a file, told by its first bytes; `bytes` when they say nothing."""
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio", b"WEBP": "image"}.get(content[8:12], "bytes")  # type: ignore[return-value]
    if content[:4] == b"fLaC":
        return "audio"
    return "image" if content.startswith(tuple(_IMAGE_MAGIC)) else "bytes"


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
    except (ValueError, TypeError, SyntaxError, EOFError, struct.error) as error:
        raise UnreadableError(f"no .npy file: {error}") from error
    if not is_of_numbers(dtype):
        raise UnreadableError(f"dtype {dtype} is neither boolean nor a number of up to 16 bytes")
    found_bytes = len(content) - start
    if num_bytes != found_bytes:
        raise UnreadableError(
            f"truncated: shape {shape} of {dtype} takes {num_bytes:,} bytes, "
            f"{found_bytes:,} are there"
        )
    flat = np.frombuffer(content, dtype=dtype, offset=start)
    array = flat.reshape(shape, order="F" if fortran_order else "C")
    if dtype.byteorder == ">" or fortran_order:
        return np.ascontiguousarray(array, dtype=dtype.newbyteorder("<")).reshape(shape)
    return array


def plain_header(content: bytes, num_bytes: int) -> tuple[bytes, NDArray[Any]] | None:
    """The header of a `.npy` file after which lie the bytes of the array that `decode_array` gives.

    Returns:
        The header, and an array of the same shape and dtype whose values do not count; None when
        the bytes lie there in another order, or the array cannot be read.
    """
    try:
        header, start = _header_bytes(content)
        shape, fortran_order, dtype, body_bytes = _npy_header(header)
    except (ValueError, TypeError, SyntaxError, EOFError, struct.error):
        return None
    plain = is_of_numbers(dtype) and dtype.byteorder != ">"
    if fortran_order or not plain or start + body_bytes != num_bytes or len(content) < start:
        return None
    return header, np.broadcast_to(np.zeros((), dtype), shape)


def decode_arrays(content: bytes, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of a `.npz` file by name, as `decode_array` gives them.

    Args:
        content: The file's bytes.
        names: The arrays that must be there, and no other; empty takes what is there.

    Raises:
        UnreadableError: Damaged, too large, or of other arrays.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if names and set(names) != set(members):
                raise UnreadableError(
                    f"arrays {', '.join(sorted(members))} in place of {', '.join(sorted(names))}"
                )
            num_bytes = sum(info.file_size for info in members.values())
            if num_bytes > MAX_ARCHIVE_BYTES:
                raise UnreadableError(f"{num_bytes:,} bytes are more than {MAX_ARCHIVE_BYTES:,}")
            wanted = names or members
            return {name: decode_array(archive.read(members[name])) for name in wanted}
    except _DAMAGED as error:
        raise UnreadableError(f"no .npz file: {error}") from error


def _open_image(content: bytes) -> Image.Image:
    if not content:
        raise UnreadableError("the file is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except UnidentifiedImageError:
        known = content.startswith(tuple(_IMAGE_MAGIC))
        reason = "damaged image: cut or broken header" if known else _UNKNOWN
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
    if image.format == "TIFF" and _num_pages(image) > 1:
        raise UnreadableError(f"{_num_pages(image)} pages; save the images as .npy")
    return image


def _by_magic(content: bytes, table: Mapping[bytes, str], what: str) -> str:
    for magic, encoding in table.items():
        if content.startswith(magic):
            return encoding
    if not content:
        raise UnreadableError("the file is empty")
    names = ", ".join(sorted(set(table.values())))
    raise UnreadableError(f"no {what} by its first bytes; valid: {names}")


def _num_pages(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except _DAMAGED as error:
        raise UnreadableError(f"damaged image: {error}") from error


def _header_bytes(content: bytes) -> tuple[bytes, int]:
    """The header of a `.npy` file with its magic, and where the values begin."""
    if content[:6] != b"\x93NUMPY":
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
