"""What a dataset or a single shard holds, as records to print."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from headrace.errors import UnknownNameError
from headrace.shards import format as names
from headrace.shards.layout import ShardLayout, read_layout
from headrace.storage.manifest import FILE_NAME, Manifest, Record, read_manifest


class ArraySummary(Record):
    """One array of a shard."""

    name: str
    """Path in the HDF5 file."""
    dtype: str
    """NumPy dtype."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    offset: int
    """First byte in the file."""
    num_bytes: int
    """Bytes."""


class ShardSummary(Record):
    """What one shard file holds."""

    kind: Literal["shard"] = "shard"
    """Tells it from a dataset."""
    path: str
    """The file."""
    split: str
    """Split of all samples."""
    num_samples: int
    """Samples."""
    num_bytes: int
    """Size of the file."""
    arrays: tuple[ArraySummary, ...]
    """All arrays, fields first."""


class DatasetSummary(Record):
    """What a dataset holds."""

    kind: Literal["dataset"] = "dataset"
    """Tells it from a shard."""
    path: str
    """The folder."""
    num_samples: int
    """Samples in all splits."""
    num_bytes: int
    """Bytes of all shards."""
    missing: tuple[str, ...]
    """Shards that are not there with their size."""
    manifest: Manifest
    """The manifest."""


def summarise(path: Path) -> DatasetSummary | ShardSummary:
    """Summary of a dataset's folder, of its `manifest.json`, or of a shard file.

    Raises:
        UnknownNameError: There is nothing at `path`.
        ManifestError: The folder is no dataset.
        ShardError: The file is no shard, or a damaged one.
    """
    path = path.expanduser().absolute()
    if not path.exists():
        raise UnknownNameError(
            f"{path} does not exist", "Give the folder of a dataset, or a shard file."
        )
    if path.is_file() and path.name != FILE_NAME:
        return _of_shard(path, read_layout(path))
    return _of_dataset(path.parent if path.is_file() else path)


def _of_dataset(folder: Path) -> DatasetSummary:
    manifest = read_manifest(folder)
    missing = [
        shard.file
        for shard in manifest.shards
        if not _has_size(folder / shard.file, shard.num_bytes)
    ]
    return DatasetSummary(
        path=str(folder),
        num_samples=manifest.num_samples,
        num_bytes=manifest.num_bytes,
        missing=tuple(missing),
        manifest=manifest,
    )


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


def _of_shard(path: Path, layout: ShardLayout) -> ShardSummary:
    def order(key: str) -> tuple[bool, str]:
        return not key.startswith(names.FIELDS_GROUP), key

    return ShardSummary(
        path=str(path),
        split=layout.split,
        num_samples=layout.num_samples,
        num_bytes=layout.num_bytes,
        arrays=tuple(
            ArraySummary(
                name=key,
                dtype=place.dtype,
                shape=place.shape,
                offset=place.offset,
                num_bytes=place.num_bytes,
            )
            for key, place in sorted(layout.arrays.items(), key=lambda item: order(item[0]))
        ),
    )
