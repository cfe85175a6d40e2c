"""Small pictures of samples: images, and waveforms of sound and other rows of numbers."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.data.dataset import SampleReader
from headrace.evaluation.drawing import ACCENT
from headrace.fields.field_kind import kind_of_encoding
from headrace.shards.dataset import ShardedDataset

_SIDE_PIXELS = 96
_CHANNELS = (1, 3, 4)
_WAVE_PIXELS = (240, 48)
_FEWEST_NUMBERS = 32


def picture(dataset: ShardedDataset, place: NDArray[np.int64]) -> bytes | None:
    """The sample at a place of the split, `(1,) int64`, as a PNG: its first field that has one."""
    for info in dataset.manifest.fields:
        kind = kind_of_encoding(info.encoding)
        if info.name == "label" or kind.is_text:
            continue
        values = SampleReader(dataset, fields=[info.name]).read(place)[info.name][0].numpy()
        values = kind.to_picture(values)
        if kind.is_wave and values.ndim == 2:
            values = values.mean(1)
        drawn = to_png(values) or to_waveform(values)
        if drawn is not None:
            return drawn
    return None


def to_png(values: NDArray[Any]) -> bytes | None:
    """Pixels `(height, width[, channels]) uint8` as a small PNG; None when they are none."""
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or min(values.shape[:2]) < 2:
        return None
    if values.ndim == 3 and values.shape[2] not in _CHANNELS:
        return None
    pixels = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
    return _png(image)


def to_waveform(values: NDArray[Any]) -> bytes | None:
    """Numbers `(frames,)` as a small PNG of their lowest and highest in each stretch.

    None when they are no row of at least 32 real numbers. Those that are not finite count as 0.
    """
    if values.ndim != 1 or values.dtype.kind not in "iuf" or len(values) < _FEWEST_NUMBERS:
        return None
    width, height = _WAVE_PIXELS
    parts = np.array_split(np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0), width)
    parts = [part for part in parts if len(part)]
    low, high = (np.array([find(part) for part in parts]) for find in (np.min, np.max))
    span = max(high.max() - low.min(), 1e-12)
    tops, bottoms = ((high.max() - each) / span * (height - 1) for each in (high, low))
    image = Image.new("RGB", (len(parts), height), "white")
    draw = ImageDraw.Draw(image)
    for x, (top, bottom) in enumerate(zip(tops, bottoms, strict=True)):
        draw.line([(x, round(top)), (x, round(bottom))], fill=ACCENT)
    return _png(image)


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
