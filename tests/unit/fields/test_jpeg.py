"""JPEG decoded without the interpreter's lock: the pixels of Pillow."""

import io
import random
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from headrace.errors import UnreadableError
from headrace.fields import jpeg
from headrace.fields.image import read_image

NOISE = np.random.default_rng(0).integers(0, 256, (37, 51, 3), dtype=np.uint8)

SAVED = {
    "4:4:4": {"subsampling": 0}, "4:2:2": {"subsampling": 1}, "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 2},
    "comment": {"comment": b"of a camera"}, "profile": {"icc_profile": bytes(200)},
    "tables": {"optimize": True, "quality": 100},
}  # fmt: skip


def saved(pixels: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(content: bytes, shrink: int = 1) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        if shrink > 1:
            image.draft(image.mode, (image.width // shrink or 1, image.height // shrink or 1))
        return np.asarray(image)


@pytest.mark.parametrize("pixels", [NOISE, NOISE[:, :, 0], NOISE[:1, :1], NOISE[:16, :8]])
@pytest.mark.parametrize("options", SAVED.values(), ids=SAVED)
@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_pixels_are_those_of_pillow(pixels, options, shrink):
    content = saved(pixels, **options)
    header = jpeg.read_header(content)
    assert header == jpeg.Header(
        height=len(pixels), width=pixels.shape[1], channels=1 if pixels.ndim == 2 else 3,
        may_turn=False,
    )  # fmt: skip
    found = jpeg.decode(content, header, shrink)
    if found.shape == by_pillow(content, shrink).shape:  # Pillow shrinks no side below one pixel
        np.testing.assert_array_equal(found, by_pillow(content, shrink))
    else:
        assert min(pixels.shape[:2]) < shrink
    if shrink == 1:
        np.testing.assert_array_equal(read_image(content).array, found)


@pytest.mark.parametrize("content", [
    b"", b"\xff\xd8", saved(NOISE)[:40], saved(NOISE)[2:],
    saved(NOISE).replace(b"\xff\xc0", b"\xff\xc9"),
    b"\x89PNG\r\n", saved(NOISE).replace(b"\xff\xda", b"\xff\x01"),
])  # fmt: skip
def test_other_content_has_no_header(content):
    assert jpeg.read_header(content) is None


def test_four_channels_and_several_pictures_are_left_to_pillow():
    cmyk = io.BytesIO()
    Image.fromarray(NOISE).convert("CMYK").save(cmyk, "JPEG")
    several = io.BytesIO()
    one = Image.fromarray(NOISE)
    one.save(several, "MPO", save_all=True, append_images=[one])
    assert jpeg.read_header(cmyk.getvalue()) is None
    assert jpeg.read_header(several.getvalue()) is None
    assert read_image(several.getvalue()).changes == ("only the first of several pictures",)


@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_turned_as_without_simplejpeg(turn, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = turn
    content = saved(NOISE, exif=exif)
    found = read_image(content)
    monkeypatch.setattr(jpeg, "_simplejpeg", lambda: None)
    alone = read_image(content)
    np.testing.assert_array_equal(found.array, alone.array)
    assert found.changes == alone.changes


def test_what_simplejpeg_refuses_is_read_as_pillow_reads_it(monkeypatch):
    content = saved(NOISE) + b"behind the end"
    cut = saved(NOISE)[:-30]
    for each in (content, cut):
        answers = []
        for library in (jpeg._simplejpeg(), None):
            monkeypatch.setattr(jpeg, "_simplejpeg", lambda library=library: library)
            try:
                answers.append(read_image(each).array.tobytes())
            except UnreadableError as error:
                answers.append(repr(error))
        assert answers[0] == answers[1]


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


SEGMENTS = {
    "jfif": b"JFIF\0\1\2\0\0\1\0\1\0\0", "adobe": b"Adobe\0d\0\0\0\0\0", "exif": b"Exif\0\0MM\0*",
    "xmp": b'http://ns.adobe.com/xap/1.0/\0<a tiff:Orientation="6"/>', "other": b"abcdefgh",
    "profile": b"ICC_PROFILE\0\1\1abc", "pictures": b"MPF\0II*\0\x08\0\0\0",
    "flashpix": b"FPXR\0abc",
    "photoshop": b"Photoshop 3.0\x008BIM\x03\xed\0\0\0\0\0\x10" + bytes(16), "table": bytes(65),
    "height": b"\0\x25", "interval": b"\0\3",
}  # fmt: skip
MARKERS = (0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xFE, 0xDB, 0xC4, 0xDC, 0xDD, 0xCC, 0x01, 0xD0, 0xD9)


def variants(content: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield a file with segments of any length added, with bytes changed, added, removed, cut."""
    scan = content.index(b"\xff\xda")
    for body in SEGMENTS.values():
        for size in (*range(min(len(body), 28)), len(body)):
            for marker in chance.sample(MARKERS, 3) if size < len(body) else MARKERS:
                for at in (2, scan):
                    yield content[:at] + segment(marker, body[:size]) + content[at:]
    frame = content.index(b"\xff\xc2" if b"\xff\xc2" in content else b"\xff\xc0")
    for _ in range(200):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 5))):
            first, end = chance.choice(((0, len(content)), (frame, frame + 19), (0, scan + 20)))
            at = chance.randrange(first, end)
            piece = chance.choice((b"", b"\xff", b"\xff\xd9", b"\0", chance.randbytes(1)))
            changed[at : at + chance.choice((0, 1, 1, 1, 4))] = piece
        yield bytes(changed[: chance.choice((None, None, None, chance.randrange(len(content))))])


def answer(content: bytes) -> tuple[object, ...]:
    try:
        found = read_image(content)
    except UnreadableError as error:
        return (error.what,)
    return found.array.shape, found.array.tobytes(), found.changes


@pytest.mark.parametrize("pixels", [NOISE, NOISE[:, :, 0], NOISE[:9, :17]])
@pytest.mark.parametrize("name", ["4:2:0", "progressive", "restarts"])
def test_any_file_is_read_or_refused_as_by_pillow_alone(pixels, name, monkeypatch):
    files = [*variants(saved(pixels, **SAVED[name]), random.Random(f"{pixels.shape} {name}"))]
    found = [answer(each) for each in files]
    num_fast = sum(jpeg.read_header(each) is not None for each in files)
    monkeypatch.setattr(jpeg, "read_header", lambda content: None)
    assert found == [answer(each) for each in files]
    assert num_fast > len(files) // 10


@pytest.mark.parametrize("body", [
    pytest.param((0xE0, b"JFIF\0"), id="jfif"), pytest.param((0xEE, b"Adobe"), id="adobe"),
    pytest.param((0xED, b"Photoshop 3.0\x008BIM\x03\xed"), id="photoshop"),
])  # fmt: skip
def test_what_pillow_refuses_is_refused(body):
    content = saved(NOISE)
    with pytest.raises(UnreadableError, match="cut or broken header"):
        read_image(content[:2] + segment(*body) + content[2:])
