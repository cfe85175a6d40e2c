"""One encoded sample to an array: images by Pillow, sound by soundfile."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from headrace.errors import DataError, UserError

SOUNDS = ("wav", "flac", "audio")
"""Encodings of sound."""

_AS_COLOURS = ("P", "PA", "CMYK")

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError,
    EOFError, LookupError, TypeError, OverflowError, struct.error, zlib.error, RuntimeError,
)  # fmt: skip


def decode_one(content: bytes, encoding: str) -> NDArray[Any]:
    """Decode one sample of the encoding `npy`, or a format of images or sound.

    Returns:
        Images as `(height, width[, channels]) uint8`, read-only, palettes as colours; sound as
        `(frames[, channels]) float32` from -1 to 1; arrays as they are.
    """
    try:
        if encoding == "npy":
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
        if encoding in SOUNDS:
            return _sound(content)
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB") if image.mode in _AS_COLOURS else image)
    except _DAMAGED as error:
        is_unknown = isinstance(error, UnidentifiedImageError)
        why = "they begin as no image does" if is_unknown else error
        raise DataError(f"{len(content)} bytes of {encoding} cannot be decoded: {why}") from error


def _sound(content: bytes) -> NDArray[np.float32]:
    try:
        import soundfile
    except ImportError as error:
        raise UserError(
            f"Sound cannot be decoded: {error}", "Install headrace with the extra `audio`."
        ) from error
    return np.asarray(soundfile.read(io.BytesIO(content), dtype="float32")[0])
