"""Content of a dataset or a shard, and whether it agrees with its manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, StoreMissingError, UnknownNameError
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import FILE_NAME
from headrace.objects.store import is_remote, missing_shards, open_store, read_manifest_at
from headrace.recipe.site import StoreOptions
from headrace.record import Record
from headrace.shards import format as names
from headrace.shards.reader import ArrayPlace, ShardLayout, ShardReader, read_layout
from headrace.shards.shard_locations import LocalCopy

_SUFFIX = ".h5"  # of the names of shards
_VALID = "Give the folder of a dataset, or a shard file."


class ShardSummary(Record):
    """Content of one shard file."""

    kind: Literal["shard"] = "shard"
    path: str
    split: str
    num_samples: int
    num_bytes: int
    arrays: tuple[ArrayPlace, ...]
    """All arrays, fields first."""


class DatasetSummary(Record):
    """Content of a dataset."""

    kind: Literal["dataset"] = "dataset"
    path: str
    """The folder or URL."""
    num_samples: int
    """Samples in all splits."""
    num_bytes: int
    """Bytes of all shards."""
    missing: tuple[str, ...]
    """Shards that are missing or of another size."""
    manifest: Manifest


def summarise(
    location: Path | str, options: StoreOptions | None = None
) -> DatasetSummary | ShardSummary:
    """Return the summary of a dataset's folder or URL, of its `manifest.json`, or of a shard.

    An `UnknownNameError` means that there is nothing, or something else.
    """
    if is_remote(str(location)):
        return _remote(str(location).rstrip("/"), options)
    path = Path(location).expanduser().absolute()
    if not path.exists():
        raise UnknownNameError(f"{path} does not exist", _VALID)
    if path.is_file() and path.name != FILE_NAME:
        if path.suffix != _SUFFIX:
            raise UnknownNameError(f"{path} is not a shard: these end with {_SUFFIX}", _VALID)
        return _of_shard(str(path), read_layout(path))
    return _of_dataset(str(path.parent if path.is_file() else path), options)


def _remote(url: str, options: StoreOptions | None) -> DatasetSummary | ShardSummary:
    place, _, name = url.rpartition("/")
    if not name.endswith(_SUFFIX):
        return _of_dataset(place if name == FILE_NAME else url, options)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        try:
            open_store(place, options).download(name, Path(folder, name))
        except StoreMissingError as error:
            raise UnknownNameError(
                f"{url} does not exist", "Give the URL of a dataset, or of a shard file."
            ) from error
        return _of_shard(url, read_layout(Path(folder, name)))


def _of_dataset(location: str, options: StoreOptions | None) -> DatasetSummary:
    manifest = read_manifest_at(location, options)
    missing = missing_shards(location, options, manifest.shards)
    return DatasetSummary(
        path=location,
        num_samples=manifest.num_samples,
        num_bytes=manifest.num_bytes,
        missing=tuple(shard.file for shard in missing),
        manifest=manifest,
    )


def _of_shard(location: str, layout: ShardLayout) -> ShardSummary:
    fields_first = sorted(
        layout.arrays, key=lambda key: (not key.startswith(names.FIELDS_GROUP), key)
    )
    return ShardSummary(
        path=location,
        split=layout.split,
        num_samples=layout.num_samples,
        num_bytes=layout.num_bytes,
        arrays=tuple(map(layout.arrays.__getitem__, fields_first)),
    )


class ShardProblem(Record):
    """A problem of a shard."""

    file: str
    """The shard, relative to the dataset's folder."""
    split: str
    first_sample: int
    """Position in the split of its first sample."""
    last_sample: int
    """Position in the split of its last sample."""
    problem: str


def verify_dataset(
    location: Path | str,
    tick: Callable[[int], None] | None = None,
    options: StoreOptions | None = None,
) -> tuple[ShardProblem, ...]:
    """Check every shard: size, checksum, structure, labels, and that sample ids are unique.

    `location` is a folder or URL with `manifest.json`, also of a staged copy. `tick` is called with
    the bytes of every chunk that was read, and may raise to stop.
    """
    manifest = read_manifest_at(str(location), options)
    findings: list[ShardProblem] = []
    ids = _Ids()
    next_place = dict.fromkeys(manifest.splits, 0)
    store = open_store(str(location), options)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        for shard in manifest.shards:
            first = next_place.get(shard.split, 0)
            next_place[shard.split] = first + shard.num_samples
            findings += [
                ShardProblem(
                    file=shard.file,
                    split=shard.split,
                    first_sample=first,
                    last_sample=first + shard.num_samples - 1,
                    problem=problem,
                )
                for problem in _problems(manifest, shard, ids, LocalCopy(store, Path(folder), tick))
            ]
    return tuple(findings)


class _Ids:
    def __init__(self) -> None:
        self._seen: list[NDArray[np.int64]] = []
        self._largest = -1

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the ids of a shard; return those that occurred before, in any shard."""
        unique, counts = np.unique(ids, return_counts=True)
        repeated = unique[counts > 1]
        if len(unique) and unique[0] <= self._largest:  # ids grow from shard to shard
            repeated = np.union1d(repeated, np.intersect1d(unique, np.concatenate(self._seen)))
        self._seen.append(unique)
        self._largest = max(self._largest, int(unique[-1]) if len(unique) else -1)
        return repeated


def _problems(manifest: Manifest, shard: ShardInfo, ids: _Ids, copy: LocalCopy) -> Iterator[str]:
    found = copy.store.stat(shard.file)
    if found is None:
        yield "the file is missing"
        return
    if found.num_bytes != shard.num_bytes:
        yield f"the file has {found.num_bytes:,} bytes, not {shard.num_bytes:,}"
        return
    try:
        path, checksum = copy.read(shard)
        if checksum == shard.xxh3_128:
            yield from _structure(manifest, shard, ShardReader(path), ids)
        else:  # damaged files are not opened by HDF5: it can hang on them
            yield f"the checksum is {checksum}, not {shard.xxh3_128}"
    except DataError as error:
        yield error.what
    except OSError as error:
        yield f"it cannot be read: {error}"


def _structure(
    manifest: Manifest, shard: ShardInfo, reader: ShardReader, ids: _Ids
) -> Iterator[str]:
    layout = reader.layout
    if layout.split != shard.split:
        yield f"it belongs to split '{layout.split}', not '{shard.split}'"
    if layout.num_samples != shard.num_samples:
        yield f"it holds {layout.num_samples:,} samples, not {shard.num_samples:,}"
    expected = sorted(info.name for info in manifest.fields)
    if list(layout.field_names()) != expected:
        yield f"it holds the fields {', '.join(layout.field_names())}, not {', '.join(expected)}"
        return
    for info in manifest.fields:
        yield from _field_problems(manifest, reader, layout, info)
    repeated = ids.add(reader.array(names.SAMPLE_ID))
    if len(repeated):
        yield f"{len(repeated):,} sample ids occur more than once, such as {repeated[0]}"


def _field_problems(
    manifest: Manifest, reader: ShardReader, layout: ShardLayout, info: FieldInfo
) -> Iterator[str]:
    if layout.is_ragged(info.name) != (info.layout == "ragged"):
        yield f"'{info.name}' is not {info.layout}"
        return
    if info.layout == "ragged":
        yield from _ragged_problems(reader, info)
        return
    values, num_classes = reader.fixed(info.name), len(manifest.classes)
    if values.dtype != np.dtype(info.dtype) or values.shape[1:] != info.shape:
        yield f"'{info.name}' is {values.dtype} {values.shape[1:]}, not {info.dtype} {info.shape}"
    elif info.name == "label" and num_classes and ((values < 0) | (values >= num_classes)).any():
        yield f"a label is not one of the {num_classes} classes"


def _ragged_problems(reader: ShardReader, info: FieldInfo) -> Iterator[str]:
    data, offsets = reader.ragged(info.name)
    if offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        yield f"the offsets of '{info.name}' do not fit its data"
    elif info.ndim is not None:
        shapes = reader.shapes(info.name)
        if shapes is None or shapes.shape[1:] != (info.ndim,):
            yield f"'{info.name}' has no shapes of {info.ndim} axes"
        elif (shapes.prod(axis=1) * np.dtype(info.dtype).itemsize != np.diff(offsets)).any():
            yield f"the shapes of '{info.name}' do not fit its data"
