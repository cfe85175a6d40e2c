"""What a dataset or a single shard holds, as records to print."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from headrace.errors import StoreMissingError, UnknownNameError
from headrace.recipe.site import StoreOptions
from headrace.record import Record
from headrace.shards import format as names
from headrace.shards.layout import ShardLayout, read_layout
from headrace.storage.manifest import FILE_NAME, Manifest, read_manifest
from headrace.storage.packed import read_manifest_at
from headrace.storage.store import is_remote, open_store

SUFFIX = ".h5"
"""Ends the names of shards."""

_VALID = "Give the folder of a dataset, or a shard file."


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
    """The folder or URL."""
    num_samples: int
    """Samples in all splits."""
    num_bytes: int
    """Bytes of all shards."""
    missing: tuple[str, ...]
    """Shards that are not there with their size."""
    manifest: Manifest
    """The manifest."""


def summarise(
    location: Path | str, options: StoreOptions | None = None
) -> DatasetSummary | ShardSummary:
    """Summary of a dataset's folder or URL, of its `manifest.json`, or of a shard file.

    A shard in S3 is brought to a temporary file.

    Args:
        location: Path, or `s3://` URL.
        options: How to reach S3.

    Raises:
        UnknownNameError: There is nothing there, or something else.
        ManifestError: The folder is no dataset.
        ShardError: The file is no shard, or a damaged one.
        StoreError: S3 kept failing.
    """
    if is_remote(str(location)):
        return _remote(str(location).rstrip("/"), options)
    path = Path(location).expanduser().absolute()
    if not path.exists():
        raise UnknownNameError(f"{path} does not exist", _VALID)
    if path.is_file() and path.name != FILE_NAME:
        if path.suffix != SUFFIX:
            raise UnknownNameError(f"{path} is no shard, whose name ends with {SUFFIX}", _VALID)
        return _of_shard(path, read_layout(path))
    folder = path.parent if path.is_file() else path
    manifest = read_manifest(folder)
    sizes = {shard.file: _size(folder / shard.file) for shard in manifest.shards}
    return _of_dataset(str(folder), manifest, sizes)


def _remote(url: str, options: StoreOptions | None) -> DatasetSummary | ShardSummary:
    place, _, name = url.rpartition("/")
    if not name.endswith(SUFFIX):
        location = place if name == FILE_NAME else url
        manifest = read_manifest_at(location, options)
        files = open_store(location, options).list_files()
        return _of_dataset(location, manifest, {file.path: file.num_bytes for file in files})
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        try:
            open_store(place, options).download(name, Path(folder, name))
        except StoreMissingError as error:
            raise UnknownNameError(
                f"{url} does not exist", "Give the URL of a dataset, or of a shard file."
            ) from error
        return _of_shard(Path(folder, name), read_layout(Path(folder, name))).model_copy(
            update={"path": url}
        )


def _of_dataset(
    location: str, manifest: Manifest, sizes: Mapping[str, int | None]
) -> DatasetSummary:
    missing = [shard.file for shard in manifest.shards if sizes.get(shard.file) != shard.num_bytes]
    return DatasetSummary(
        path=location,
        num_samples=manifest.num_samples,
        num_bytes=manifest.num_bytes,
        missing=tuple(missing),
        manifest=manifest,
    )


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


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
