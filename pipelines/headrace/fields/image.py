"""Images: PNG, JPEG, BMP, WebP, GIF and TIFF, decoded by Pillow to 8 bits a channel."""

from __future__ import annotations

import io
import struct
import zlib
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from headrace.errors import UnreadableError
from headrace.fields.field_kind import Decoded, Kind, Shape, Value, encoding_by_magic

MAX_PIXELS = 89_478_485
"""Pixels beyond which an image is taken for a decompression bomb, as by Pillow's warning."""

_MAGIC = {
    b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"BM": "bmp", b"RIFF": "webp",
    b"GIF8": "gif", b"II*\0": "tiff", b"MM\0*": "tiff",
}  # fmt: skip
_PNG_DEPTH = 24  # byte of a PNG file that tells the bits a channel
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
_ENCODINGS = {"MPO": "jpeg"} | {name: name.lower() for name in _FORMATS}
_MODES = {
    "1": "L", "L": "L", "LA": "L", "La": "L",
    "RGB": "RGB", "RGBA": "RGB", "RGBa": "RGB", "RGBX": "RGB", "P": "RGB", "PA": "RGB",
    "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
}  # fmt: skip

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError,
    struct.error, zlib.error, NotImplementedError, RuntimeError, Warning,
)  # fmt: skip


class ImageKind(Kind):
    """Pixels, or the files as they are."""

    name = "image"
    plural = "images"
    suffixes = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
    encodings = ("image", *dict.fromkeys(_MAGIC.values()))
    options = ("keep", "resize", "channels", "dtype", "mixed", "codec", "chunk_samples")
    keep = "decode"
    varies = False

    def recognises(self, content: bytes) -> bool:
        if content[:4] == b"RIFF":
            return content[8:12] == b"WEBP"
        return content.startswith(tuple(_MAGIC))

    def encode(self, value: Value, dtype: str, *, check: bool) -> tuple[bytes, str]:
        content = cast("bytes", value)
        if not check:
            return content, encoding_by_magic(content, _MAGIC.items(), "image")
        decode_image(content)
        with _open_image(content) as image:
            return content, _ENCODINGS[image.format or ""]

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        return decode_image(content)

    def to_array(self, value: Value, shape: Shape) -> Decoded:
        pixels = decode_image(cast("bytes", value))
        if shape.channels == 1 and pixels.ndim == 3:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))
        elif shape.channels == 3 and pixels.ndim == 2:
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        if shape.resize is not None and pixels.shape[:2] != shape.resize:
            height, width = shape.resize
            resampling = Image.Resampling[shape.filter.upper()]
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), resampling))
        return pixels, None

    def way_out(self, name: str, *, other_axes: bool) -> str:
        if other_axes:
            return (
                f"Some images are grey and some are not: set pack.fields.{name}.channels to 1 "
                f"or 3, or pack.fields.{name}.keep to 'encoded'."
            )
        return (
            f"Make all of equal size, set pack.fields.{name}.resize or "
            f"pack.fields.{name}.mixed, or set pack.fields.{name}.keep to 'encoded'."
        )


def decode_image(content: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG, JPEG, BMP, WebP, GIF or TIFF file.

    Grey images give `(height, width)`, all others `(height, width, 3)` red, green, blue. Alpha is
    dropped, palettes are looked up, pixels keep the orientation they are stored in. Of an animation
    the first picture counts; a TIFF file of several pages is refused. The array is read-only.

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
            pixels: NDArray[np.uint8] = np.asarray(image)
        except _DAMAGED as error:
            raise UnreadableError(f"damaged image: {error}") from error
    return pixels


def _open_image(content: bytes) -> Image.Image:
    if not content:
        raise UnreadableError("the file is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except UnidentifiedImageError:
        known = content.startswith(tuple(_MAGIC))
        unknown = "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"
        reason = "damaged image: cut or broken header" if known else unknown
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


def _num_pages(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except _DAMAGED as error:
        raise UnreadableError(f"damaged image: {error}") from error
