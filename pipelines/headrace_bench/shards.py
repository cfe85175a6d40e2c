"""Samples as a dataset of headrace, without a pack step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.files.manifest import Codec, FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint, write_manifest
from headrace.packing.fields import chunk_samples
from headrace.shards.columns import Block, ExpectedSizes
from headrace.shards.shard_layout import Buffer
from headrace.shards.writer import ShardBuilder, WrittenShard

SPLIT = "train"
SAMPLE = "image"
SHARD_BYTES = 64 * 2**20
"""Size of a shard, the default of recipes."""


def write_dataset(
    folder: Path,
    samples: NDArray[np.uint8] | Sequence[bytes],
    sample_bytes: int,
    codec: Codec = "none",
) -> Manifest:
    """Write samples and their numbers as `label`: arrays `(num_samples, *shape)`, or JPEG files."""
    (folder / "shards").mkdir(parents=True)
    span = max(SHARD_BYTES // sample_bytes, 1)
    starts = range(0, len(samples), span)
    written = [
        _write_shard(folder, number, start, samples[start : start + span], codec)
        for number, start in enumerate(starts)
    ]
    shards, fields = tuple(shard for shard, _ in written), written[0][1]
    manifest = Manifest(
        name="benchmark",
        fingerprint=content_fingerprint(fields, (), shards),
        pack_key="",
        fields=fields,
        splits={SPLIT: len(samples)},
        shards=shards,
    )
    write_manifest(folder, manifest)
    return manifest


def _write_shard(
    folder: Path,
    number: int,
    start: int,
    samples: NDArray[np.uint8] | Sequence[bytes],
    codec: Codec,
) -> tuple[ShardInfo, tuple[FieldInfo, ...]]:
    name = f"shards/{SPLIT}-{number:05d}.h5"
    ids = np.arange(start, start + len(samples), dtype=np.int64)
    writer = ShardWriter(SPLIT, ids, [f"{index:08d}" for index in ids])
    if isinstance(samples, np.ndarray):
        writer.add_fixed(SAMPLE, samples, codec, chunk_samples(samples[0].nbytes))
    else:
        writer.add_ragged(SAMPLE, samples, "jpeg")
    writer.add_fixed("label", ids)
    written = writer.publish(folder / name)
    shard = ShardInfo(
        file=name,
        split=SPLIT,
        num_samples=len(ids),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
    )
    return shard, writer.fields


class ShardWriter:
    """Collects the fields of a shard and publishes them as one HDF5 file.

    Args:
        split: Split of all samples.
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
        self._check_length("source", len(sources))

    def add_fixed(
        self, name: str, values: NDArray[Any], codec: Codec = "none", chunk_samples: int = 1
    ) -> None:
        """Add a field of fixed shape, `(num_samples, *shape)`.

        Args:
            name: Its name.
            values: Its samples.
            codec: Compression.
            chunk_samples: Samples in a chunk, if it is compressed.

        Raises:
            ShardError: The number of samples differs, or the name is taken.
        """
        info = FieldInfo(
            name=name,
            dtype=values.dtype.name,
            layout="fixed",
            shape=values.shape[1:],
            codec=codec,
            chunk_samples=0 if codec == "none" else chunk_samples,
        )
        self._add(info, [_as_bytes(row) for row in values])

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The fields that were added, as a manifest describes them."""
        return tuple(self._fields.values())

    def add_ragged(self, name: str, items: Sequence[bytes], encoding: str = "raw") -> None:
        """Add a field `name`: `items` of any length in an `encoding`; errors as `add_fixed`."""
        info = FieldInfo(name=name, dtype="uint8", layout="ragged", encoding=encoding)
        self._add(info, list(items))

    def add_arrays(self, name: str, items: Sequence[NDArray[Any]]) -> None:
        """Add a field `name`: `items` of one dtype and number of axes; errors as `add_fixed`."""
        ndim = items[0].ndim if items else 0
        dtype = items[0].dtype.name if items else "uint8"
        info = FieldInfo(name=name, dtype=dtype, layout="ragged", ndim=ndim)
        self._add(info, [_as_bytes(item) for item in items])
        self._shapes[name] = [item.shape for item in items]

    def publish(self, path: Path) -> WrittenShard:
        """Write the shard under a temporary name, sync it, and rename it.

        Raises:
            StorageFullError: The disk is full; no file is left.
        """
        expected = ExpectedSizes(
            num_samples=len(self._sample_ids),
            source_bytes=sum(map(len, self._sources)),
            first_bytes=sum(map(len, next(iter(self._columns.values()), ()))),
        )
        block = Block(
            ids=self._sample_ids,
            sources=self._sources,
            columns=tuple(self._columns.values()),
            shapes=self._shapes,
        )
        with ShardBuilder(path, self._split, self.fields, expected) as builder:
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


def _as_bytes(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
