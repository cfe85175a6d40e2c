"""Arrays of any shape and dtype as people see them."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace_pages.drawn import MOST_PIXELS, MOST_STRETCHES, Drawn, drawn


def pixels(shown: Drawn) -> np.ndarray[Any, Any]:
    """What a browser sees."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.png))))


@pytest.mark.parametrize(
    ("shape", "kind", "seen", "num_frames"),
    [
        ((), "text", None, 1),
        ((3,), "text", None, 1),
        ((17,), "waves", None, 1),
        ((12, 5000), "waves", None, 1),
        ((5000, 2), "waves", None, 1),
        ((8, 8), "picture", (8, 8), 1),
        ((64, 500), "picture", (64, 500), 1),
        ((8, 8, 1), "picture", (8, 8), 1),
        ((8, 9, 3), "picture", (8, 9, 3), 1),
        ((8, 9, 4), "picture", (8, 9, 4), 1),
        ((3, 8, 9), "picture", (8, 9, 3), 1),
        ((1, 8, 9), "picture", (8, 9), 1),
        ((5, 8, 9), "picture", (8, 9), 5),
        ((4, 8, 9), "picture", (8, 9), 4),
        ((5, 8, 9, 3), "picture", (8, 9, 3), 5),
        ((5, 3, 8, 9), "picture", (8, 9, 3), 5),
        ((2, 6, 8, 9), "picture", (8, 9), 12),
        ((2, 3), "array", None, 1),
        ((0, 4), "array", None, 1),
        ((40, 8, 2), "array", None, 1),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool", "complex64"])
def test_what_an_array_is_shown_as(shape, kind, seen, num_frames, dtype):
    values = (np.arange(int(np.prod(shape))).reshape(shape) % 250).astype(dtype)
    shown = drawn(values)
    assert (shown.kind, shown.shape, shown.dtype) == (kind, shape, dtype)
    assert (pixels(shown).shape if shown.png else None) == seen
    assert shown.num_frames == num_frames
    assert bool(shown.waves) == (kind == "waves")


def test_pixels_of_8_bits_are_shown_as_they_are_others_are_stretched_and_it_is_said():
    photo = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    shown = drawn(photo)
    assert np.array_equal(pixels(shown), photo)
    assert shown.notes == ()
    assert np.array_equal(pixels(drawn(photo.transpose(2, 0, 1))), photo)
    depths = np.linspace(-5, 20, 64, dtype=np.float32).reshape(8, 8)
    depths[0, 1] = np.nan
    shown = drawn(depths)
    assert (pixels(shown).min(), pixels(shown).max()) == (0, 255)
    assert shown.notes == ("1 values are not finite", "black is -5, white is 20")
    assert (shown.minimum, shown.maximum) == (-5, 20)
    share = np.full((8, 8), 0.5)
    assert pixels(drawn(share)).max() == 128
    assert drawn(share).notes == ()
    mask = np.eye(8, dtype=np.uint8) * 3
    assert pixels(drawn(mask)).max() == 255
    assert drawn(mask).notes == ("black is 0, white is 3",)
    assert pixels(drawn(np.full((8, 8), np.inf))).max() <= 255


def test_one_of_several_pictures_is_chosen():
    film = np.stack([np.full((8, 8), 100 + frame, dtype=np.uint8) for frame in range(5)])
    assert [int(pixels(drawn(film, frame)).max()) for frame in (0, 4)] == [100, 104]
    assert drawn(film, 99).frame == 4


def test_a_large_picture_is_scaled_and_it_is_said():
    shown = drawn(np.zeros((3000, 4000), dtype=np.uint8))
    assert pixels(shown).shape == (384, MOST_PIXELS)
    assert (shown.width, shown.height) == (4000, 3000)
    assert "scaled from 3,000 x 4,000 to 384 x 512" in shown.notes
    assert "lowest, highest and mean of one in 3 values" in shown.notes


def test_of_a_long_wave_lowest_and_highest_of_each_stretch_are_kept():
    sound = np.zeros((480_000, 2), dtype=np.float32)
    sound[123_456, 1] = 0.9
    sound[400_000, 1] = np.nan
    shown = drawn(sound, is_sound=True, sample_rate=16_000)
    left, right = shown.waves
    assert shown.x_unit == "second"
    assert len(left.x) == len(left.y) == 2 * MOST_STRETCHES
    assert max(filter(None, right.y)) == pytest.approx(0.9)
    assert right.x[right.y.index(max(filter(None, right.y)))] == pytest.approx(7.7, abs=0.05)
    assert left.x[-1] == pytest.approx(30, abs=0.05)
    assert "lowest and highest of each of 1,000 stretches of 480,000 values" in shown.notes
    short = drawn(np.array([1.0, np.inf, 3.0]), is_sound=True)
    assert (short.waves[0].y, short.x_unit) == ((1.0, None, 3.0), "place")
    many = drawn(np.zeros((12, 200)))
    assert (len(many.waves), many.notes) == (8, ("the first 8 of 12 channels",))
