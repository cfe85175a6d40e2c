"""Pixels of every format and mode: exact, with a change that is named, or refused."""

import io
import itertools
import pickle
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from headrace.errors import UnreadableError
from headrace.fields.field_kind import kind_named, kind_of_encoding
from headrace.fields.image import read_image
from headrace.recipe.dataset import PackField

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (5, 7), dtype=np.uint8)
RGB = RANDOM.integers(0, 256, (5, 7, 3), dtype=np.uint8)
OPAQUE, CLEAR = np.full((5, 7), 255, np.uint8), GREY
ALPHA = "alpha dropped"
PALETTE = "palette looked up"
SCALED = "fewer than 8 bits a channel scaled to 0 to 255"
FIRST = "only the first of several pictures"
GREY2 = np.dstack([GREY, GREY])
ROWS = b"\1\x10\0\0\x10\2\0\0"
LOOKED_UP = np.repeat(np.uint8([[9, 0], [5, 7]])[:, :, None], 3, axis=2)
FEW, GREYS_16 = [0, 9, 7, 5], [*range(16)]


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def tiff(
    pixels: np.ndarray, bits: int, ink: int = 2, order: str = "<", **tags: tuple[int, ...]
) -> bytes:
    """An uncompressed TIFF file, `(height, width[, channels])`, with any further tags."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    body = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    entries: dict[int, tuple[int, ...]] = {
        256: (pixels.shape[1],), 257: (pixels.shape[0],), 258: (bits,) * channels, 259: (1,),
        262: (ink,), 273: (0,), 277: (channels,), 278: (pixels.shape[0],), 279: (len(body),),
        **{int(name[1:]): values for name, values in tags.items()},
    }  # fmt: skip
    start = 8 + 2 + 12 * len(entries) + 4
    directory, more = struct.pack(order + "H", len(entries)), b""
    place = start + sum(2 * len(each) for each in entries.values() if len(each) > 2)
    entries[273] = (place,)
    for tag, values in sorted(entries.items()):
        kind, code = (4, "I") if tag in (273, 279) else (3, "H")
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        if len(packed) > 4:
            packed, more = struct.pack(order + "I", start + len(more)), more + packed
        directory += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "I", 8) + directory + b"\0\0\0\0" + more + body


def bmp(
    bits: int, palette: list[int], rows: bytes, num_colours: int = 0, *, header: int = 40
) -> bytes:
    """A BMP file of 2 x 2 pixels, a palette of greys, and rows of 4 bytes from the bottom."""
    head = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, bits, 0, len(rows), 0, 0, num_colours, 0)
    if header == 12:
        head = struct.pack("<IHHHH", 12, 2, 2, 1, bits)
    colours = b"".join(bytes((each,) * 3).ljust(3 + (header > 12), b"\0") for each in palette)
    start = 14 + len(head) + len(colours)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + head + colours + rows


def png(
    colours: int, depth: int, channels: int, *chunks: tuple[bytes, bytes], first: bytes = b""
) -> bytes:
    """A PNG file of 5 x 7 pixels of zeros; `first` is the text of a chunk before its header."""
    rows = (b"\0" + bytes(-(-7 * channels * depth // 8))) * 5

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 7, 5, depth, colours, 0, 0, 0)
    before = [(b"tEXt", first)] if first else []
    parts = [*before, (b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def jpeg_of_depth(bits: int) -> bytes:
    content = bytearray(saved(Image.fromarray(RGB), "JPEG"))
    content[content.index(b"\xff\xc0") + 4] = bits
    return bytes(content)


def with_mode(mode: str) -> Image.Image:
    return Image.fromarray(RGB).convert(mode)


def palette_of(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


P = Image.fromarray(GREY).convert("P")
P.putpalette(RANDOM.integers(0, 256, 768, dtype=np.uint8).tobytes())
GREY16, RGB16 = GREY.astype(np.uint16) * 7 + 1, RGB.astype(np.uint16) * 7 + 1
LA, LA_OPAQUE = np.dstack([GREY, CLEAR]), np.dstack([GREY, OPAQUE])
RGBA, RGBA_OPAQUE = np.dstack([RGB, CLEAR]), np.dstack([RGB, OPAQUE])
BITS = Image.fromarray(GREY > 127)
EXACT_MAP = tuple(int(each) * 257 for each in RANDOM.integers(0, 256, 768))
CMYK = np.dstack([RGB, GREY])

KEPT = {
    "grey PNG": (saved(Image.fromarray(GREY), "PNG"), GREY, ()),
    "grey TIFF": (tiff(GREY, 8, 1), GREY, ()),
    "grey BMP": (saved(Image.fromarray(GREY), "BMP"), GREY, (PALETTE,) * 0),
    "colour PNG": (saved(Image.fromarray(RGB), "PNG"), RGB, ()),
    "colour TIFF": (tiff(RGB, 8), RGB, ()),
    "colour TIFF, LZW": (saved(Image.fromarray(RGB), "TIFF", compression="tiff_lzw"), RGB, ()),
    "BMP of 8 bits": (bmp(8, [*range(256)], ROWS), np.uint8([[16, 2], [1, 16]]), ()),
    "BMP of 8 bits with 4 colours": (
        bmp(8, FEW, b"\3\2\0\0\1\0\0\0", 4), LOOKED_UP, (PALETTE,),
    ),
    "BMP of 4 bits with other greys": (
        bmp(4, FEW, b"\x32\0\0\0\x10\0\0\0", 4), LOOKED_UP, (PALETTE,),
    ),
    "BMP of 1 bit": (
        bmp(1, [0, 255], b"\x40\0\0\0\x80\0\0\0", 2), np.uint8([[255, 0], [0, 255]]), (SCALED,),
    ),
    "BMP of OS/2": (bmp(24, [], b"\7" * 16, header=12), np.full((2, 2, 3), 7, np.uint8), ()),
    "BMP of OS/2, 16 where others have their depth": (
        bmp(24, [], b"\x10" * 16, header=12), np.full((2, 2, 3), 16, np.uint8), (),
    ),
    "colour BMP": (saved(Image.fromarray(RGB), "BMP"), RGB, ()),
    "colour WebP": (saved(Image.fromarray(RGB), "WEBP", lossless=True), RGB, ()),
    "opaque LA": (saved(Image.fromarray(LA_OPAQUE), "PNG"), GREY, ()),
    "opaque RGBA": (saved(Image.fromarray(RGBA_OPAQUE), "PNG"), RGB, ()),
    "opaque premultiplied TIFF": (tiff(RGBA_OPAQUE, 8, _338=(1,)), RGB, ()),
    "LA": (saved(Image.fromarray(LA), "PNG"), GREY, (ALPHA,)),
    "RGBA": (saved(Image.fromarray(RGBA), "PNG"), RGB, (ALPHA,)),
    "RGBA TIFF": (tiff(RGBA, 8, _338=(2,)), RGB, (ALPHA,)),
    "RGBA WebP": (
        saved(Image.fromarray(RGBA), "WEBP", lossless=True, exact=True), RGB, (ALPHA,),
    ),
    "transparent colour": (
        png(2, 8, 3, (b"tRNS", bytes(6))), np.zeros((5, 7, 3), np.uint8), (ALPHA,),
    ),
    "transparent colour that no pixel has": (
        png(2, 8, 3, (b"tRNS", b"\0\1" * 3)), np.zeros((5, 7, 3), np.uint8), (),
    ),
    "transparent grey": (png(0, 8, 1, (b"tRNS", bytes(2))), np.zeros((5, 7), np.uint8), (ALPHA,)),
    "palette": (saved(P, "PNG"), palette_of(P), (PALETTE,)),
    "palette with transparency": (
        saved(P, "PNG", transparency=int(GREY[0, 0])), palette_of(P), (ALPHA, PALETTE),
    ),
    "GIF": (saved(P, "GIF"), palette_of(P), (PALETTE,)),
    "palette TIFF": (saved(P, "TIFF"), palette_of(P), (PALETTE,)),
    "palette of exact 16 bits": (
        tiff(GREY, 8, 3, _320=EXACT_MAP),
        np.array(EXACT_MAP).reshape(3, 256).T[GREY] // 257, (PALETTE,),
    ),
    "1 bit": (saved(BITS, "PNG"), np.asarray(BITS).astype(np.uint8) * 255, (SCALED,)),
    "1 bit TIFF": (saved(BITS, "TIFF"), np.asarray(BITS).astype(np.uint8) * 255, (SCALED,)),
    "4 bits": (png(0, 4, 1), np.zeros((5, 7), np.uint8), (SCALED,)),
    "white is zero": (tiff(GREY, 8, 0), 255 - GREY, ()),
    "CMYK JPEG": (saved(with_mode("CMYK"), "JPEG"), None, ("CMYK converted to RGB",)),
    "CMYK TIFF": (
        tiff(CMYK, 8, 5), np.asarray(Image.fromarray(CMYK, "CMYK").convert("RGB")),
        ("CMYK converted to RGB",),
    ),
    "LAB TIFF": (saved(with_mode("LAB"), "TIFF"), None, ("LAB converted to RGB",)),
    "YCbCr TIFF": (saved(with_mode("YCbCr"), "TIFF"), None, ("YCbCr converted to RGB",)),
    "JPEG": (saved(Image.fromarray(RGB), "JPEG"), None, ()),
    "animated GIF": (
        saved(P, "GIF", save_all=True, append_images=[Image.new("P", (7, 5), 3)]),
        palette_of(P), (FIRST, PALETTE),
    ),
    "animated WebP": (
        saved(
            Image.fromarray(RGB), "WEBP", save_all=True, lossless=True,
            append_images=[Image.new("RGB", (7, 5))],
        ),
        RGB, (FIRST,),
    ),
    "animated PNG": (
        saved(
            Image.fromarray(RGB), "PNG", save_all=True, append_images=[Image.new("RGB", (7, 5))]
        ),
        RGB, (FIRST,),
    ),
    "two pictures in a JPEG": (
        saved(
            Image.fromarray(RGB), "MPO", save_all=True, append_images=[Image.new("RGB", (7, 5))]
        ),
        None, (FIRST,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    content, pixels, changes = KEPT[name]
    found = read_image(content)
    assert found.changes == changes
    assert found.array.dtype == np.uint8
    if pixels is None:  # what Pillow makes of it
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(found.array, pixels)
    kind = kind_named("image")
    assert kind.to_array(content, PackField())[2] == changes
    assert kind.encode(content, "uint8", check=True)[2] == changes


REFUSED = {
    "grey PNG": (png(0, 16, 1), "16 bits a channel"),
    "grey PNG of numbers": (saved(Image.fromarray(GREY16), "PNG"), "16 bits a channel"),
    "grey and alpha PNG": (png(4, 16, 2), "16 bits a channel"),
    "colour PNG": (png(2, 16, 3), "16 bits a channel"),
    "colour and alpha PNG": (png(6, 16, 4), "16 bits a channel"),
    "grey TIFF": (tiff(GREY16, 16, 1), "16 bits a channel"),
    "grey TIFF, big-endian": (tiff(GREY16, 16, 1, ">"), "16 bits a channel"),
    "colour TIFF": (tiff(RGB16, 16), "16 bits a channel"),
    "colour TIFF, big-endian": (tiff(RGB16, 16, 2, ">"), "16 bits a channel"),
    "RGBA TIFF": (tiff(np.dstack([RGB16, GREY16]), 16, _338=(2,)), "16 bits a channel"),
    "RGBX TIFF": (tiff(np.dstack([RGB16, GREY16]), 16, _338=(0,)), "16 bits a channel"),
    "CMYK TIFF": (tiff(np.dstack([RGB16, GREY16]), 16, 5), "16 bits a channel"),
    "YCbCr TIFF that Pillow has not": (tiff(RGB16, 16, 6), "16 bits a channel"),
    "LAB TIFF that Pillow has not": (tiff(RGB16, 16, 8, ">"), "16 bits a channel"),
    "signed 16 bits": (tiff(GREY16, 16, 1, _339=(2,)), "16 bits a channel"),
    "BMP of 8 bits, black and white": (bmp(8, [0, 255], ROWS, 2), "8 bits a pixel"),
    "BMP of 4 bits, black and white": (bmp(4, [0, 255], ROWS, 2), "4 bits a pixel"),
    "BMP of 4 bits, greys": (bmp(4, GREYS_16, ROWS, 16), "4 bits a pixel"),
    "BMP of 4 bits, greys, OS/2": (bmp(4, GREYS_16, ROWS, header=12), "4 bits a pixel"),
    "BMP of 1 bit, greys": (bmp(1, GREYS_16, ROWS, 16), "1 bits a pixel"),
    "16 bits, header not first": (png(2, 16, 3, first=b"a\0bcdefghij"), "first chunk is not IHDR"),
    "8 bits, header not first": (png(2, 8, 3, first=b"a\0bcdefghij"), "first chunk is not IHDR"),
    "2 channels of grey": (tiff(GREY2, 8, 1), "2 channels of grey"),
    "3 channels of grey": (tiff(RGB, 8, 1), "3 channels of grey"),
    "4 channels of grey": (tiff(np.dstack([RGB, GREY]), 8, 1, ">"), "4 channels of grey"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(12), "HEIC or AVIF; save the images as JPEG or PNG"),
    "12 bits": (tiff(GREY16, 12, 1), "12 bits a channel"),
    "32 bits": (saved(Image.fromarray(GREY.astype(np.int32)), "TIFF"), "32 bits a channel"),
    "floating point": (saved(Image.fromarray(GREY.astype(np.float32)), "TIFF"), "32 bits a"),
    "floating point colours": (
        tiff(RGB.astype(np.float32), 32, _339=(3, 3, 3)), "32 bits a channel",
    ),
    "signed 8 bits": (tiff(GREY, 8, 1, _339=(2,)), "numbers with a sign"),
    "near infrared": (tiff(np.dstack([RGB, GREY]), 8, _338=(0,)), "4 channels, not 3"),
    "five channels": (tiff(np.dstack([RGBA, GREY]), 8, _338=(2, 0)), "5 channels, not 4"),
    "grey and another": (tiff(np.dstack([GREY, GREY]), 8, 1, _338=(0,)), "2 channels, not 1"),
    "CMYK and another": (tiff(np.dstack([CMYK, GREY]), 8, 5, _338=(0,)), "5 channels, not 4"),
    "premultiplied": (tiff(RGBA, 8, _338=(1,)), "multiplied by alpha"),
    "premultiplied grey": (tiff(LA, 8, 1, _338=(1,)), "mode 'La'"),
    "palette of 16 bits": (tiff(GREY, 8, 3, _320=(1000,) * 768), "a palette of 16 bits"),
    "pages": (
        saved(with_mode("RGB"), "TIFF", save_all=True, append_images=[with_mode("RGB")]), "2 pages",
    ),
    "JPEG of 12 bits": (jpeg_of_depth(12), "12 bits a channel"),
    "cut JPEG": (jpeg_of_depth(8)[:12], "damaged image"),
    "PPM": (saved(with_mode("RGB"), "PPM"), "neither PNG"),
    "JPEG 2000": (saved(with_mode("RGB"), "JPEG2000"), "neither PNG"),
    "empty": (b"", "empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    content, reason = REFUSED[name]
    kind = kind_named("image")
    for read in (
        read_image, kind.decode, lambda each: kind.to_array(each, PackField(channels=3)),
        lambda each: kind.encode(each, "uint8", check=True),
    ):  # fmt: skip
        with pytest.raises(UnreadableError, match=reason) as caught:
            read(content)
        assert "bits a channel" not in reason or "save the images as .npy" in str(caught.value)


def with_orientation(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    if kind == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        return saved(Image.fromarray(RGB), kind, tiffinfo=tags)
    if kind == "TIFF, LZW":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        return saved(Image.fromarray(RGB), "TIFF", tiffinfo=tags, compression="tiff_lzw")
    options = {"lossless": True} if kind == "WEBP" else {}
    return saved(Image.fromarray(RGB), kind, exif=exif, **options)


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [
        *itertools.product(["PNG", "JPEG", "WEBP", "TIFF"], range(10)),
        *itertools.product(["TIFF, LZW"], range(1, 9)),
    ],
)
def test_orientation(kind: str, orientation: int) -> None:
    content = with_orientation(kind, orientation)
    stored = read_image(with_orientation(kind, 1)).array
    if kind != "JPEG":
        np.testing.assert_array_equal(stored, RGB)
    exif = Image.Exif()
    exif[0x0112] = orientation
    oriented = Image.fromarray(stored)
    oriented.info["exif"] = exif.tobytes()
    turned = np.asarray(ImageOps.exif_transpose(oriented))
    turns = orientation in range(2, 9)
    found, kept = read_image(content), read_image(content, turns=False)
    np.testing.assert_array_equal(found.array, turned)
    np.testing.assert_array_equal(kept.array, stored)
    assert found.changes == (("turned as EXIF says",) if turns else ())
    assert kept.changes == (("not turned, though EXIF says so",) if turns else ())


def test_readers_turn_as_the_manifest_says() -> None:
    content = with_orientation("PNG", 6)
    for orientation, height in (("apply", 7), ("keep", 5), (None, 5)):
        kind = kind_of_encoding("png", orientation)
        assert kind.decode(content).shape[0] == height
        assert pickle.loads(pickle.dumps(kind)).decode(content).shape[0] == height
    assert kind_named("image").decode(content).shape[0] == 7


def test_exif_that_cannot_be_read_turns_nothing() -> None:
    exif = b"Exif\0\0II*\0\xff\xff\0\0"
    np.testing.assert_array_equal(
        read_image(saved(Image.fromarray(RGB), "PNG", exif=exif)).array, RGB
    )


@pytest.mark.parametrize("start", TiffImagePlugin.PREFIXES)
def test_every_start_of_a_tiff_file_is_known(start):
    assert kind_named("image").encode(start + b"...", "", check=False).encoding == "tiff"
