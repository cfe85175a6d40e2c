"""Writes one shard: whole or not at all, and the same bytes for the same samples."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards import format as names
from headrace.shards.format import Ragged
from headrace.storage.atomic import fsync_folder
from headrace.storage.room import told_when_full

TEMPORARY_SUFFIX = ".tmp"
"""Ending of files that are being written; they begin with a dot."""


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What is now on disk."""

    num_bytes: int
    """Size of the file."""
    xxh3_128: str
    """XXH3 checksum of the file, 128 bits, hexadecimal."""


class ShardWriter:
    """Collects the fields of a shard and publishes them as one HDF5 file.

    The file is laid out in memory, so that HDF5 never meets a full disk half way; a shard must
    fit there twice.

    Args:
        split: Split that all samples belong to.
        sample_ids: Numbers of the samples, unique in the dataset, `(num_samples,) int64`.
        sources: Source path of every sample.
    """

    def __init__(self, split: str, sample_ids: NDArray[np.int64], sources: Sequence[str]) -> None:
        self._split = split
        self._sample_ids = np.ascontiguousarray(sample_ids, dtype=np.int64)
        self._sources = Ragged.of([source.encode() for source in sources])
        self._fields: dict[str, NDArray[Any] | Ragged] = {}
        self._check_length(names.SOURCE, len(sources))

    def add_fixed(self, name: str, values: NDArray[Any]) -> None:
        """Add a field of fixed shape, `(num_samples, *shape)`.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        self._check_length(name, len(values))
        self._fields[name] = np.ascontiguousarray(values)

    def add_ragged(self, name: str, items: Sequence[bytes]) -> None:
        """Add a field of varying length, one byte string a sample.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        self._check_length(name, len(items))
        self._fields[name] = Ragged.of(list(items))

    def publish(self, path: Path) -> WrittenShard:
        """Write the shard under a temporary name, make it durable, give it its name.

        Raises:
            StorageFullError: There is no room; nothing is left behind.
        """
        image = self._image()
        written = WrittenShard(num_bytes=image.nbytes, xxh3_128=xxhash.xxh3_128(image).hexdigest())
        with told_when_full(path.parent, image.nbytes):
            _publish(image, path)
        return written

    def _check_length(self, name: str, num_samples: int) -> None:
        if num_samples != len(self._sample_ids):
            raise ShardError(
                f"Field '{name}' has {num_samples} samples, the shard {len(self._sample_ids)}"
            )
        if name in self._fields:
            raise ShardError(f"Field '{name}' was added twice")

    def _image(self) -> memoryview:
        buffer = io.BytesIO()
        with h5py.File(
            buffer,
            "w",
            libver=("earliest", "v110"),
            alignment_threshold=1,
            alignment_interval=names.ALIGNMENT_BYTES,
        ) as file:
            file.attrs[names.FORMAT_ATTRIBUTE] = np.int64(names.SHARD_FORMAT)
            file.attrs[names.SPLIT_ATTRIBUTE] = self._split
            _write_fields(file.create_group(names.FIELDS_GROUP), self._fields)
            _write_array(file, names.SAMPLE_ID, self._sample_ids)
            _write_fields(file, {names.SOURCE: self._sources})
        return buffer.getbuffer()


def _write_fields(group: h5py.Group, fields: Mapping[str, NDArray[Any] | Ragged]) -> None:
    for name, values in fields.items():
        if isinstance(values, Ragged):
            ragged = group.create_group(name)
            _write_array(ragged, names.DATA, values.data)
            _write_array(ragged, names.OFFSETS, values.offsets)
        else:
            _write_array(group, name, values)


def _write_array(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    little_endian = values.astype(values.dtype.newbyteorder("<"), copy=False)
    group.create_dataset(name, data=little_endian, track_times=False)  # contiguous, uncompressed


def _publish(image: memoryview, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_temporary(folder: Path) -> int:
    """Remove what writers that were killed left in `folder`.

    Only call it where no writer can be at work.

    Returns:
        Files removed.
    """
    left = list(folder.glob(f".*{TEMPORARY_SUFFIX}"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
