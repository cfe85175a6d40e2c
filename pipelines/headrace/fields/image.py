"""Images: PNG, JPEG, BMP, WebP, GIF and TIFF, decoded to 8 bits a channel.

JPEG by libjpeg-turbo alone where it can (`headrace.fields.jpeg`), everything else by Pillow.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from headrace.errors import UnreadableError
from headrace.fields import jpeg
from headrace.fields.field_kind import (
    Choose,
    Decoded,
    Encoded,
    Kind,
    Orientation,
    Shape,
    Value,
    encoding_by_magic,
    part_of,
)
from headrace.fields.jpeg import MAX_PIXELS

_MAGIC = {
    b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"BM": "bmp", b"RIFF": "webp",
    b"GIF8": "gif", b"II*\0": "tiff", b"MM\0*": "tiff", b"II+\0": "tiff", b"MM\0+": "tiff",
    b"II\0*": "tiff", b"MM*\0": "tiff",
}  # fmt: skip
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
_MODES = {
    "1": "L", "L": "L", "LA": "L",
    "RGB": "RGB", "RGBA": "RGB", "RGBX": "RGB", "P": "RGB", "PA": "RGB",
    "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
}  # fmt: skip
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""What shows an image as it was taken, by its orientation in EXIF; others: nothing."""
_BACK = {
    Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
    Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
}

_HOLD_EXIF = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
_PNG_DEPTH, _PNG_COLOURS, _BMP_DEPTH = 24, 25, 28  # bytes of a file
_BMP_GREYS = {"1": 1, "L": 8}  # bits a pixel, where Pillow leaves out a palette of greys
_BITS, _INK, _CHANNELS, _COLOUR_MAP, _EXTRA, _SAMPLE_FORMAT = 258, 262, 277, 320, 338, 339  # TIFF
_PREMULTIPLIED = 1  # value of _EXTRA
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # segments of JPEG that are no header of a frame
_HEIF = tuple(b"ftyp" + each for each in (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis"))
_WAY_OUT = "save the images as .npy"

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError,
    struct.error, zlib.error, NotImplementedError, RuntimeError, Warning,
)  # fmt: skip


class ImageKind(Kind):
    """Pixels, or the files as they are.

    `turns`: whether images are turned as their EXIF data says.
    """

    name = "image"
    plural = "images"
    suffixes = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
    encodings = ("image", *dict.fromkeys(_MAGIC.values()))
    options = (
        "keep", "resize", "channels", "orientation", "dtype", "mixed", "codec", "chunk_samples",
    )  # fmt: skip
    keep = "decode"
    varies = False

    def __init__(self, turns: bool = True) -> None:
        self.turns = turns

    def __reduce__(self) -> tuple[object, ...]:
        return ImageKind, (self.turns,)

    def oriented(self, orientation: Orientation) -> Kind:
        return ImageKind(orientation != "keep")

    def recognises(self, content: bytes) -> bool:
        if content[:4] == b"RIFF":
            return content[8:12] == b"WEBP"
        return content.startswith(tuple(_MAGIC))

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded:
        content = cast("bytes", value)
        changes = read_image(content, turns=self.turns).changes if check else ()
        return Encoded(content, encoding_by_magic(content, _MAGIC.items(), "image"), changes)

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        return read_image(content, turns=self.turns).array

    def decode_part(self, content: bytes, choose: Choose, size: int) -> NDArray[np.uint8]:
        header = jpeg.read_header(content)
        if header is None or (self.turns and header.may_turn and _is_turned(content)):
            return super().decode_part(content, choose, size)
        box = choose(header.height, header.width)
        most = min(box[2] - box[0], box[3] - box[1]) // size
        shrink = next((factor for factor in (8, 4, 2) if factor <= most), 1)
        pixels = jpeg.decode(content, header, shrink)
        if pixels is None:  # the whole image has other pixels, but always where this one is damaged
            return part_of(read_image(content, turns=False).array, box)
        return part_of(pixels, box, shrink)

    def to_array(self, value: Value, shape: Shape) -> Decoded:
        pixels, _, changes = read_image(cast("bytes", value), turns=self.turns)
        if shape.channels == 1 and pixels.ndim == 3:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))
        elif shape.channels == 3 and pixels.ndim == 2:
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        if shape.resize is not None and pixels.shape[:2] != shape.resize:
            height, width = shape.resize
            resampling = Image.Resampling[shape.filter.upper()]
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), resampling))
        return Decoded(pixels, changes=changes)

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


def read_image(content: bytes, *, turns: bool = True) -> Decoded:
    """Decode a PNG, JPEG, BMP, WebP, GIF or TIFF file; with `turns` as its EXIF data turns it.

    Grey images give `(height, width)`, all others `(height, width, 3)` red, green, blue. What is
    dropped, converted or turned is among the `changes`. The array may be read-only.

    Raises:
        UnreadableError: Empty, damaged, too large, of several pages, or of channels that do not fit
            8 bits or are no colours.
    """
    header = jpeg.read_header(content)
    if header is not None and not header.may_turn:
        pixels = jpeg.decode(content, header)
        if pixels is not None:
            return Decoded(pixels)
    with _open_image(content) as image:
        try:
            return _read(image, content, header, turns=turns)
        except _DAMAGED as error:
            raise UnreadableError(f"damaged image: {error}") from error


def _read(
    image: Image.Image, content: bytes, header: jpeg.Header | None, *, turns: bool
) -> Decoded:
    changes = ["only the first of several pictures"] if getattr(image, "is_animated", False) else []
    turn = _turn(image)
    pixels = jpeg.decode(content, header) if header and header.may_turn else None
    if pixels is None:
        image.load()
    else:
        image = Image.fromarray(pixels)
    if turn is not None and image.format == "TIFF" and _turn(image) is None:  # Pillow has done it
        image = image.transpose(_BACK.get(turn, turn))
    transparent = _is_transparent(image)
    if transparent and _PREMULTIPLIED in _tags(image).get(_EXTRA, ()):
        raise UnreadableError("colours multiplied by alpha; save the image without alpha")
    changes += ["alpha dropped"] if transparent else []
    mode, target = image.mode, _MODES[image.mode]
    if mode in ("P", "PA"):
        changes.append("palette looked up")
    elif _depth(image, content) < 8:
        changes.append("fewer than 8 bits a channel scaled to 0 to 255")
    elif mode not in ("L", "LA", "RGB", "RGBA", "RGBX"):
        changes.append(f"{mode} converted to RGB")
    image = image.convert(target) if mode != target else image
    if turn is not None:
        changes.append("turned as EXIF says" if turns else "not turned, though EXIF says so")
        image = image.transpose(turn) if turns else image
    return Decoded(np.asarray(image), changes=tuple(changes))


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return how EXIF says to turn an image; None for not at all, or if it cannot be read."""
    if image.format == "PNG":
        image.load()  # what may lie behind the pixels
    if image.format != "TIFF" and not any(key in image.info for key in _HOLD_EXIF):
        return None
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGED:
        return None


def _is_turned(content: bytes) -> bool:
    with _open_image(content) as image:
        return _turn(image) is not None


def _is_transparent(image: Image.Image) -> bool:
    """Whether a pixel is not opaque."""
    if image.mode in ("LA", "RGBA", "PA"):
        alpha = image.getchannel("A")
    elif "transparency" in image.info:
        alpha = image.convert("RGBA").getchannel("A")
    else:
        return False
    return cast("tuple[int, int]", alpha.getextrema())[0] < 255


def _open_image(content: bytes) -> Image.Image:
    if not content:
        raise UnreadableError("the file is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        _refuse_what_does_not_fit(image, content)
    except UnidentifiedImageError:
        raise UnreadableError(_why_unknown(content)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError(str(error)) from error
    except _DAMAGED as error:
        raise UnreadableError(f"damaged image: {error}") from error
    return image


def _refuse_what_does_not_fit(image: Image.Image, content: bytes) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UnreadableError(f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
    if image.format == "PNG" and content[12:16] != b"IHDR":
        raise UnreadableError("damaged image: its first chunk is not IHDR")
    if (depth := _depth(image, content)) > 8:  # Pillow would round colours silently
        raise UnreadableError(f"{depth} bits a channel; {_WAY_OUT}")
    if image.mode not in _MODES:
        raise UnreadableError(f"pixels of mode '{image.mode}'; {_WAY_OUT}")
    bits = _depth_of_bmp(content) if image.format == "BMP" else None
    if bits not in (None, _BMP_GREYS.get(image.mode, bits)):  # Pillow would misread them
        raise UnreadableError(f"{bits} bits a pixel, palette of greys; save the images as PNG")
    tags, bands = _tags(image), len(image.getbands())
    if tags and (pages := int(getattr(image, "n_frames", 1))) > 1:
        raise UnreadableError(f"{pages} pages; {_WAY_OUT}")
    if (channels := int(tags.get(_CHANNELS, 1))) > bands:
        raise UnreadableError(f"{channels} channels, not {bands}; {_WAY_OUT}")
    if any(number != 1 for number in tags.get(_SAMPLE_FORMAT, ())):
        raise UnreadableError(f"numbers with a sign; {_WAY_OUT}")
    if any(entry % 256 and entry % 257 for entry in tags.get(_COLOUR_MAP, ())):
        raise UnreadableError("a palette of 16 bits a channel; save the images with one of 8 bits")


def _depth(image: Image.Image, content: bytes) -> int:
    """Return the bits per channel in the file, which Pillow may have scaled or rounded to 8."""
    if image.mode == "1":
        return 1
    if image.format == "PNG":
        return content[_PNG_DEPTH]
    if image.format == "BMP" and _depth_of_bmp(content) == 16:
        return 5
    return int(max(_tags(image).get(_BITS, (8,))))


def _tags(image: Image.Image) -> Mapping[int, Any]:
    """Return the tags of a TIFF file."""
    return getattr(image, "tag_v2", {})


def _why_unknown(content: bytes) -> str:
    """Return why Pillow does not open a file."""
    if content[4:12] in _HEIF:
        return "HEIC or AVIF; save the images as JPEG or PNG"
    if not content.startswith(tuple(_MAGIC)):
        return "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"
    with suppress(*_DAMAGED):
        tags = {} if content.startswith(b"\xff\xd8") else _tags_of_tiff(content)
        if (depth := int(max(tags[_BITS])) if tags else _depth_of_jpeg(content)) > 8:
            return f"{depth} bits a channel; {_WAY_OUT}"
        if tags and tags[_INK] < 2 and tags[_CHANNELS] > 1:
            return f"{tags[_CHANNELS]} channels of grey; {_WAY_OUT}"
    return "damaged image: cut or broken header"


def _tags_of_tiff(content: bytes) -> Mapping[int, Any]:
    tags, stream = TiffImagePlugin.ImageFileDirectory_v2(content[:8]), io.BytesIO(content)
    stream.seek(tags.next)
    tags.load(stream)
    return tags


def _depth_of_bmp(content: bytes) -> int:
    """Return the bits a pixel."""
    return content[_BMP_DEPTH - 4 if content[14] == 12 else _BMP_DEPTH]


def _depth_of_jpeg(content: bytes) -> int:
    """Return the bits in the first header of a frame, a segment between 0xC0 and 0xCF."""
    at = 2
    while content[at] == 0xFF and (content[at + 1] & 0xF0 != 0xC0 or content[at + 1] in _NO_FRAME):
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return content[at + 4]
