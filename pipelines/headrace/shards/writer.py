"""Writes one shard whose arrays are in memory: whole or not at all, same samples, same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards import format as names
from headrace.shards.builder import TEMPORARY_SUFFIX, ShardBuilder, WrittenShard
from headrace.shards.columns import Block, Expected
from headrace.shards.streams import Buffer
from headrace.storage.manifest import Codec, FieldInfo

__all__ = ["ShardWriter", "WrittenShard", "remove_temporary"]


class ShardWriter:
    """Collects the fields of a shard and publishes them as one HDF5 file.

    Args:
        split: Split that all samples belong to.
        sample_ids: Numbers of the samples, unique in the dataset, `(num_samples,) int64`.
        sources: Source path of every sample.
    """

    def __init__(self, split: str, sample_ids: NDArray[np.int64], sources: Sequence[str]) -> None:
        self._split = split
        self._sample_ids = np.ascontiguousarray(sample_ids, dtype=np.int64)
        self._sources = [source.encode() for source in sources]
        self._fields: dict[str, FieldInfo] = {}
        self._columns: dict[str, Sequence[Buffer]] = {}
        self._shapes: dict[str, Sequence[tuple[int, ...]]] = {}
        self._check_length(names.SOURCE, len(sources))

    def add_fixed(
        self, name: str, values: NDArray[Any], codec: Codec = "none", chunk_samples: int = 1
    ) -> None:
        """Add a field of fixed shape, `(num_samples, *shape)`.

        Args:
            name: Its name.
            values: Its samples.
            codec: Compression.
            chunk_samples: Samples in a chunk, when it is compressed.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        info = FieldInfo(
            name=name,
            dtype=values.dtype.name,
            shape=values.shape[1:],
            layout="fixed",
            codec=codec,
            chunk_samples=0 if codec == "none" else chunk_samples,
        )
        self._add(info, [_as_bytes(row) for row in values])

    def add_ragged(self, name: str, items: Sequence[bytes]) -> None:
        """Add a field of varying length, one byte string a sample.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        self._add(FieldInfo(name=name, dtype="uint8", layout="ragged"), list(items))

    def add_arrays(self, name: str, items: Sequence[NDArray[Any]]) -> None:
        """Add a field of arrays of one dtype and number of axes, and of any shape.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        ndim = items[0].ndim if items else 0
        dtype = items[0].dtype.name if items else "uint8"
        self._add(
            FieldInfo(name=name, dtype=dtype, layout="ragged", ndim=ndim),
            [_as_bytes(item) for item in items],
        )
        self._shapes[name] = [item.shape for item in items]

    def publish(self, path: Path) -> WrittenShard:
        """Write the shard under a temporary name, make it durable, give it its name.

        Raises:
            StorageFullError: There is no room; nothing is left behind.
        """
        fields = tuple(self._fields.values())
        first_bytes = sum(map(len, next(iter(self._columns.values()), ())))
        expected = Expected(
            num_samples=len(self._sample_ids),
            source_bytes=sum(map(len, self._sources)),
            first_bytes=first_bytes,
        )
        with ShardBuilder(path, self._split, fields, expected) as builder:
            block = Block(
                ids=self._sample_ids,
                sources=self._sources,
                columns=tuple(self._columns.values()),
                shapes=self._shapes,
            )
            builder.add(block)
            return builder.finish()

    def _add(self, info: FieldInfo, items: Sequence[Buffer]) -> None:
        self._check_length(info.name, len(items))
        self._fields[info.name] = info
        self._columns[info.name] = items

    def _check_length(self, name: str, num_samples: int) -> None:
        if num_samples != len(self._sample_ids):
            raise ShardError(
                f"Field '{name}' has {num_samples} samples, the shard {len(self._sample_ids)}"
            )
        if name in self._fields:
            raise ShardError(f"Field '{name}' was added twice")


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


def _as_bytes(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
