"""Encoded samples to arrays: images by Pillow, sound by soundfile, in threads."""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from headrace.data.order import Indices
from headrace.errors import DataError, ShardError, UserError
from headrace.shards.dataset import ShardedDataset
from headrace.storage.manifest import FieldInfo

_MAX_THREADS = 8
_SLICES = 4  # a thread's share of a batch, so that none waits long for the others

_VERIFY = "Run `headrace verify` on the dataset."
_AUDIO = ("wav", "flac", "audio")
_AS_COLOURS = ("P", "PA", "CMYK")

# what Pillow's decoders raise on damaged bytes; the bytes are in memory, so none of it is I/O
_DAMAGED = (
    UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError,
    OverflowError, struct.error, zlib.error, RuntimeError,
)  # fmt: skip


def decode_one(content: bytes, encoding: str) -> NDArray[Any]:
    """Decode one sample.

    Args:
        content: Bytes of the file.
        encoding: `npy`, or a format of images or sound.

    Returns:
        Images as `(height, width[, channels]) uint8`, palettes as colours; sound as
        `(frames[, channels]) float32` from -1 to 1; arrays as they are.

    Raises:
        DataError: The bytes are not what they should be.
    """
    try:
        if encoding == "npy":
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
        if encoding in _AUDIO:
            return _sound(content)
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB") if image.mode in _AS_COLOURS else image)
    except _DAMAGED as error:
        raise DataError(f"{len(content)} bytes of {encoding} cannot be decoded: {error}") from error


def _sound(content: bytes) -> NDArray[np.float32]:
    try:
        import soundfile
    except ImportError as error:
        raise UserError(
            f"Sound cannot be decoded: {error}", "Install headrace with the extra `audio`."
        ) from error
    return np.asarray(soundfile.read(io.BytesIO(content), dtype="float32")[0])


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
        with dataset.holding(indices):
            items = dataset.items(info.name, indices)
            if info.encoding in ("text", "json"):
                return [item.tobytes().decode() for item in items]
            if info.encoding != "raw":
                return self._decoded(
                    info, items, lambda place: dataset.sources(indices[place : place + 1])[0]
                )
            arrays = [np.array(item).view(info.dtype) for item in items]
            if info.ndim is None:
                return arrays
            shapes = dataset.shapes(info.name, indices).tolist()
            for place, shape in enumerate(shapes):
                if math.prod(shape) != arrays[place].size:
                    (source,) = dataset.sources(indices[place : place + 1])
                    raise ShardError(
                        f"Bytes and shape of '{info.name}' do not fit each other: {source}", _VERIFY
                    )
            return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]

    def _decoded(
        self, info: FieldInfo, items: Sequence[NDArray[np.uint8]], names: Callable[[int], str]
    ) -> list[Any]:
        def decode(places: range) -> list[NDArray[Any]]:
            return [_named(items[place], info.encoding, partial(names, place)) for place in places]

        count = min(len(items), _num_threads() * _SLICES)
        slices = [range(first, len(items), count) for first in range(count)]
        arrays: list[Any] = [None] * len(items)
        threads = self._threads()
        parts = [threads.submit(decode, places) for places in slices]
        wait(parts)  # also when one raises: shards may be unmapped after that
        for places, part in zip(slices, parts, strict=True):
            for place, array in zip(places, part.result(), strict=True):
                arrays[place] = array
        return arrays

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(_num_threads(), thread_name_prefix="headrace-decode")
            self._pid = os.getpid()
        return self._pool


def _named(item: NDArray[np.uint8], encoding: str, name: Callable[[], str]) -> NDArray[Any]:
    try:
        return decode_one(item.tobytes(), encoding)
    except DataError as error:
        raise DataError(f"{name()}: {error.what}", _VERIFY) from error


def _num_threads() -> int:
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))
