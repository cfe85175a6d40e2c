"""Small pictures of samples, where the dataset holds images."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace.data.dataset import SampleReader
from headrace.shards.dataset import ShardedDataset

_SIDE_PIXELS = 96
_CHANNELS = (1, 3, 4)
_IMAGES = ("raw", "png", "jpeg", "bmp")


def thumbnails(dataset: ShardedDataset, indices: npt.NDArray[np.int64]) -> tuple[bytes | None, ...]:
    """Samples as PNG of at most 96 pixels a side; None for those that are no images.

    Args:
        dataset: The split.
        indices: Places in the split, `(n,) int64`.
    """
    info = dataset.manifest.fields[0]
    if info.encoding not in _IMAGES:
        return (None,) * len(indices)
    reader = SampleReader(dataset, fields=[info.name])
    one_by_one = (indices[place : place + 1] for place in range(len(indices)))
    arrays = (reader.read(each)[info.name] for each in one_by_one)
    return tuple(to_png(array[0].numpy()) for array in arrays)


def to_png(values: npt.NDArray[Any]) -> bytes | None:
    """Pixels `(height, width[, channels]) uint8` as a small PNG; None when they are none."""
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or min(values.shape[:2]) < 2:
        return None
    if values.ndim == 3 and values.shape[2] not in _CHANNELS:
        return None
    pixels = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
