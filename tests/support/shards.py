"""Small datasets of real shards for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint, read_manifest, write_manifest
from headrace_bench.shards import ShardWriter


def write_dataset(
    folder: Path,
    fields: Mapping[str, NDArray[Any]],
    *,
    splits: Mapping[str, int],
    shard_samples: int = 50,
    classes: tuple[str, ...] = (),
) -> Manifest:
    """Write fixed fields as a dataset; samples are numbered in order, split after split.

    Args:
        folder: Made when it is not there.
        fields: Arrays `(num_samples, *shape)` by name, the input first, `label` last.
        splits: Samples of each split, in order.
        shard_samples: Samples a shard.
        classes: Names of the classes.
    """
    infos = [
        FieldInfo(name=name, dtype=str(each.dtype), shape=each.shape[1:], layout="fixed")
        for name, each in fields.items()
    ]

    def add(writer: ShardWriter, ids: NDArray[np.int64]) -> None:
        for name, values in fields.items():
            writer.add_fixed(name, values[ids])

    return write_fields(
        folder, infos, add, splits=splits, shard_samples=shard_samples, classes=classes
    )


def write_fields(
    folder: Path,
    fields: Sequence[FieldInfo],
    add: Callable[[ShardWriter, NDArray[np.int64]], None],
    *,
    splits: Mapping[str, int],
    shard_samples: int = 50,
    classes: tuple[str, ...] = (),
    source: str = "folder/<{}>.png",
) -> Manifest:
    """Write fields of any kind as `write_dataset` does.

    Args:
        folder: Made when it is not there.
        fields: Their descriptions.
        add: Adds the fields of samples, `(n,) int64`, to the writer of their shard.
        splits: Samples of each split, in order.
        shard_samples: Samples a shard.
        classes: Names of the classes.
        source: Template of the sample's source, for its number.
    """
    (folder / "shards").mkdir(parents=True)
    shards: list[ShardInfo] = []
    first = 0
    for split, num_samples in splits.items():
        for number, start in enumerate(range(first, first + num_samples, shard_samples)):
            ids = np.arange(start, min(start + shard_samples, first + num_samples))
            file = f"shards/{split}-{number:05d}.h5"
            writer = ShardWriter(split, ids, [source.format(index) for index in ids])
            add(writer, ids)
            written = vars(writer.publish(folder / file))
            shards.append(ShardInfo(file=file, split=split, num_samples=len(ids), **written))
        first += num_samples
    manifest = Manifest(
        name="small",
        fingerprint="",
        pack_key="test",
        fields=tuple(fields),
        classes=classes,
        splits=dict(splits),
        shards=tuple(shards),
    )
    return write_identified(folder, manifest)


def write_identified(folder: Path, manifest: Manifest) -> Manifest:
    """Write a manifest with the fingerprint of what it lists; gives what was written."""
    fingerprint = content_fingerprint(manifest.fields, manifest.classes, manifest.shards)
    manifest = manifest.model_copy(update={"fingerprint": fingerprint})
    write_manifest(folder, manifest)
    return manifest


def reseal(folder: Path, file: str) -> None:
    """Make size and checksum in the manifest those of a shard as it is."""
    manifest = read_manifest(folder)
    update = {
        "num_bytes": (folder / file).stat().st_size,
        "xxh3_128": file_xxh3_128(folder / file),
    }
    shards = tuple(
        shard.model_copy(update=update) if shard.file == file else shard
        for shard in manifest.shards
    )
    write_identified(folder, manifest.model_copy(update={"shards": shards}))
