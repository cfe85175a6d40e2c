"""One array for people: a picture, waveforms, or figures; large arrays are thinned."""

from __future__ import annotations

import base64
import io
import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.record import Record

MOST_PIXELS = 512
"""Longest side of a picture that is sent."""
MOST_LINES = 8
MOST_STRETCHES = 1000
"""Most stretches of a waveform; of each, the lowest and the highest value are sent."""

_MOST_VALUES = 2**22  # for the figures, and for a picture before it is scaled
_FEW = 16  # numbers in a row that are written out; channels of waveforms
_LONG = 8  # times as long as wide: waveforms, not a picture
_LEAST_SIDE = 4
_DARK = 64  # 8-bit pixels that are all below (masks, for example) are stretched

Array = NDArray[Any]


class Wave(Record):
    """One line."""

    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """Null for values that are not finite."""


class Drawn(Record):
    """An array as it is shown."""

    kind: Literal["picture", "waves", "text", "array"]
    shape: tuple[int, ...]
    dtype: str
    text: str = ""
    """Few numbers, written out."""
    png: str = ""
    """A picture, PNG in base 64."""
    width: int = 0
    """Of the picture before it was scaled."""
    height: int = 0
    frame: int = 0
    num_frames: int = 1
    """Number of pictures in the array."""
    waves: tuple[Wave, ...] = ()
    x_unit: Literal["second", "place"] = "place"
    """Unit of the positions of waves."""
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    """Of the finite values."""
    notes: tuple[str, ...] = ()
    """Differences between the shown and the stored values."""


def drawn(
    values: Array, frame: int = 0, *, is_sound: bool = False, sample_rate: int | None = None
) -> Drawn:
    """Return numbers of any shape as shown; of several pictures number `frame`, or the last.

    `values` may be mapped: of large arrays only a part is read. Sound is `(frames[, channels])`,
    with `sample_rate` frames per second, if known.
    """
    notes: list[str] = []
    content: dict[str, Any] = {"shape": values.shape, "dtype": str(values.dtype)}
    if values.dtype.kind == "c":
        values = np.abs(values)
        notes.append("magnitudes of complex numbers")
    content |= _figures(values, notes)
    kind = _kind(values.shape, is_sound=is_sound)
    if kind == "text":
        content["text"] = np.array2string(values, precision=6, separator=", ")
    elif kind == "waves":
        content["waves"] = _waves(values, sample_rate, notes)
        content["x_unit"] = "second" if sample_rate is not None else "place"
    elif kind == "picture":
        content |= _picture(values, frame, notes)
    return Drawn(kind=kind, notes=tuple(notes), **content)


def _kind(
    shape: tuple[int, ...], *, is_sound: bool
) -> Literal["picture", "waves", "text", "array"]:
    if math.prod(shape) == 0:
        return "array"
    if len(shape) < 2:
        return "waves" if is_sound or math.prod(shape) > _FEW else "text"
    if len(shape) == 2 and (is_sound or (min(shape) <= _FEW and max(shape) >= _LONG * min(shape))):
        return "waves"
    _, (height, width) = _axes(shape)
    return "picture" if min(height, width) >= _LEAST_SIDE else "array"


def _axes(shape: tuple[int, ...]) -> tuple[Literal["", "last", "first"], tuple[int, int]]:
    """Return which of the last axes is that of colours, and height and width."""
    if len(shape) > 2 and shape[-1] in (1, 3, 4):
        return "last", (shape[-3], shape[-2])
    if len(shape) > 2 and shape[-3] in (1, 3):
        return "first", (shape[-2], shape[-1])
    return "", (shape[-2], shape[-1])


def _figures(values: Array, notes: list[str]) -> dict[str, float | None]:
    every = -(-values.size // _MOST_VALUES) or 1
    if every > 1:
        notes.append(f"lowest, highest and mean of one in {every:,} values")
    looked = values.reshape(-1)[::every].astype(np.float64)
    finite = looked[np.isfinite(looked)]
    if len(finite) < len(looked):
        notes.append(f"{len(looked) - len(finite):,} values are not finite")
    if not len(finite):
        return {}
    return {
        "minimum": float(finite.min()),
        "maximum": float(finite.max()),
        "mean": float(finite.mean()),
    }


def _picture(values: Array, frame: int, notes: list[str]) -> dict[str, Any]:
    colours, (height, width) = _axes(values.shape)
    frames = values.reshape(-1, *values.shape[-3 if colours else -2 :])
    frame = min(frame, len(frames) - 1)
    pixels = np.moveaxis(frames[frame], 0, -1) if colours == "first" else frames[frame]
    step = math.isqrt(-(-pixels.size // _MOST_VALUES) - 1) + 1
    pixels = _bytes(pixels[::step, ::step], notes)
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    image.thumbnail((MOST_PIXELS, MOST_PIXELS))
    if image.size != (width, height):
        notes.append(f"scaled from {height:,} x {width:,} to {image.height:,} x {image.width:,}")
    file = io.BytesIO()
    image.save(file, format="PNG")
    png = base64.b64encode(file.getvalue()).decode()
    return {
        "png": png, "width": width, "height": height, "frame": frame, "num_frames": len(frames)
    }  # fmt: skip


def _bytes(pixels: Array, notes: list[str]) -> NDArray[np.uint8]:
    """Return pixels of 8 bits; others are stretched from their lowest to their highest value."""
    if pixels.dtype == np.uint8 and (pixels.ndim == 3 or int(pixels.max()) >= _DARK):
        return np.ascontiguousarray(pixels)
    real = pixels.astype(np.float64)
    finite = real[np.isfinite(real)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if pixels.dtype.kind in "fb" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    else:
        notes.append(f"black is {low:g}, white is {high:g}")
    scaled = (np.nan_to_num(real, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    whole: NDArray[np.uint8] = np.ascontiguousarray((scaled * 255).round().astype(np.uint8))
    return whole


def _waves(values: Array, sample_rate: int | None, notes: list[str]) -> tuple[Wave, ...]:
    lines = values.reshape(1, -1) if values.ndim == 1 else values
    if lines.shape[0] > lines.shape[1]:  # time first, as of sound
        lines = lines.T
    if len(lines) > MOST_LINES:
        notes.append(f"the first {MOST_LINES} of {len(lines)} channels")
    if lines.shape[1] > 2 * MOST_STRETCHES:
        stretches = f"{MOST_STRETCHES:,} stretches of {lines.shape[1]:,} values"
        notes.append(f"lowest and highest of each of {stretches}")
    return tuple(_wave(line, sample_rate or 1) for line in lines[:MOST_LINES])


def _wave(line: Array, rate: int) -> Wave:
    places = np.arange(len(line))
    if len(line) > 2 * MOST_STRETCHES:
        starts = np.linspace(0, len(line), MOST_STRETCHES, endpoint=False).astype(np.int64)
        lowest, highest = (find.reduceat(line, starts) for find in (np.fmin, np.fmax))
        ends = np.append(starts[1:], len(line))
        places = np.stack([starts, (starts + ends) // 2]).T.reshape(-1)
        line = np.stack([lowest, highest]).T.reshape(-1)
    shown = [float(each) if math.isfinite(each) else None for each in line.tolist()]
    return Wave(x=tuple((places / rate).tolist()), y=tuple(shown))
