"""Encoded samples to arrays: images by Pillow, arrays by NumPy, in threads."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from headrace.data.order import Indices
from headrace.errors import DataError
from headrace.shards.dataset import ShardedDataset
from headrace.storage.manifest import FieldInfo

_MAX_THREADS = 8


def decode_one(content: bytes, encoding: str) -> NDArray[Any]:
    """Decode one sample.

    Args:
        content: Bytes of the file.
        encoding: `npy`, or an image format.

    Returns:
        Images as `(height, width[, channels]) uint8`, palettes as colours; arrays as they are.

    Raises:
        DataError: The bytes are not what they should be.
    """
    try:
        if encoding == "npy":
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB") if image.mode in ("P", "CMYK") else image)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"{len(content)} bytes of {encoding} cannot be decoded: {error}") from error


class Decoder:
    """Decodes batches of encoded samples; starts its threads when first used, in each process."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def __reduce__(self) -> tuple[object, ...]:
        return Decoder, ()

    def decode(self, dataset: ShardedDataset, info: FieldInfo, indices: Indices) -> list[Any]:
        """Read and decode samples of a ragged field.

        Args:
            dataset: The split.
            info: The field.
            indices: Places in the split, `(batch,) int64`.

        Returns:
            One array a sample, text as `str`.

        Raises:
            DataError: A sample cannot be decoded.
        """
        ragged = dataset.gather_ragged(info.name, indices)
        items = [ragged.item(number) for number in range(len(indices))]
        if info.encoding == "raw":
            return [np.frombuffer(bytearray(item), dtype=info.dtype) for item in items]
        if info.encoding in ("text", "json"):
            return [item.decode() for item in items]
        return list(self._threads().map(lambda item: decode_one(item, info.encoding), items))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # threads do not survive a fork
            count = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="headrace-decode")
            self._pid = os.getpid()
        return self._pool
