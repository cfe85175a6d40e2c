"""JPEG decoded without the interpreter's lock: the pixels of Pillow."""

import io

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
