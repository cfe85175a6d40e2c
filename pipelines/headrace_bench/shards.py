"""Samples as a dataset of headrace, without a pack step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.files.manifest import Codec, FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint, write_manifest
from headrace.packing.fields import chunk_samples
from headrace.shards.writer import ShardWriter

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
    """Write samples with their numbers as `label`.

    Args:
        folder: Made when it is not there.
        samples: Arrays `(num_samples, *shape)`, or JPEG files.
        sample_bytes: Size of a sample, about.
        codec: Compression of arrays.
    """
    (folder / "shards").mkdir(parents=True)
    span = max(SHARD_BYTES // sample_bytes, 1)
    starts = range(0, len(samples), span)
    shards = tuple(
        _write_shard(folder, number, start, samples[start : start + span], codec)
        for number, start in enumerate(starts)
    )
    fields = (_field(samples, codec), FieldInfo(name="label", dtype="int64", layout="fixed"))
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


def _field(samples: NDArray[np.uint8] | Sequence[bytes], codec: Codec) -> FieldInfo:
    if isinstance(samples, np.ndarray):
        return FieldInfo(
            name=SAMPLE,
            dtype="uint8",
            shape=samples.shape[1:],
            layout="fixed",
            codec=codec,
            chunk_samples=0 if codec == "none" else chunk_samples(samples[0].nbytes),
        )
    return FieldInfo(name=SAMPLE, dtype="uint8", layout="ragged", encoding="jpeg")


def _write_shard(
    folder: Path,
    number: int,
    start: int,
    samples: NDArray[np.uint8] | Sequence[bytes],
    codec: Codec,
) -> ShardInfo:
    name = f"shards/{SPLIT}-{number:05d}.h5"
    ids = np.arange(start, start + len(samples), dtype=np.int64)
    writer = ShardWriter(SPLIT, ids, [f"{index:08d}" for index in ids])
    if isinstance(samples, np.ndarray):
        writer.add_fixed(SAMPLE, samples, codec, chunk_samples(samples[0].nbytes))
    else:
        writer.add_ragged(SAMPLE, samples)
    writer.add_fixed("label", ids)
    written = writer.publish(folder / name)
    return ShardInfo(
        file=name,
        split=SPLIT,
        num_samples=len(ids),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
    )
