"""Checks the shards of a dataset against its manifest: nothing is taken on trust."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError
from headrace.recipe.site import StoreOptions
from headrace.record import Record
from headrace.shards.copies import Copies, copies_of
from headrace.shards.layout import ShardLayout
from headrace.shards.reader import ShardReader
from headrace.storage.manifest import FieldInfo, Manifest, ShardInfo
from headrace.storage.packed import read_manifest_at

Tick = Callable[[int], None]


class Finding(Record):
    """Something wrong with a shard."""

    file: str
    """The shard, relative to the dataset's folder."""
    split: str
    """Its split."""
    first_sample: int
    """Place in the split of its first sample."""
    last_sample: int
    """Place in the split of its last sample."""
    problem: str
    """What is wrong."""


def verify_dataset(
    location: Path | str, tick: Tick | None = None, options: StoreOptions | None = None
) -> tuple[Finding, ...]:
    """Check every shard: size, checksum, structure, labels, and that sample ids are unique.

    Args:
        location: Folder or URL with `manifest.json`; a staged copy will do.
        tick: Called with the bytes of every chunk that was read; may raise to stop.
        options: How to reach S3.

    Returns:
        What is wrong, shard by shard; empty when all is well.

    Raises:
        ManifestError: There is no dataset, or its manifest is damaged.
        StoreError: S3 kept failing.
        StorageFullError: There is no room for one shard out of S3.
    """
    manifest = read_manifest_at(str(location), options)
    findings: list[Finding] = []
    ids = _Ids()
    with copies_of(str(location), options) as copies:
        for shard, first in _placed(manifest):
            for problem in _problems(copies, manifest, shard, ids, tick):
                finding = Finding(
                    file=shard.file,
                    split=shard.split,
                    first_sample=first,
                    last_sample=first + shard.num_samples - 1,
                    problem=problem,
                )
                findings.append(finding)
    return tuple(findings)


def _placed(manifest: Manifest) -> Iterator[tuple[ShardInfo, int]]:
    """Every shard with the place in its split of its first sample."""
    next_place = dict.fromkeys(manifest.splits, 0)
    for shard in manifest.shards:
        first = next_place.get(shard.split, 0)
        yield shard, first
        next_place[shard.split] = first + shard.num_samples


class _Ids:
    """Sample ids seen so far."""

    def __init__(self) -> None:
        self._seen: list[NDArray[np.int64]] = []
        self._largest = -1

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take in the ids of a shard.

        Returns:
            Those that occurred before, in it or in another shard.
        """
        unique, counts = np.unique(ids, return_counts=True)
        repeated = unique[counts > 1]
        if len(unique) and unique[0] <= self._largest:  # ids grow from shard to shard
            repeated = np.union1d(repeated, np.intersect1d(unique, np.concatenate(self._seen)))
        self._seen.append(unique)
        self._largest = max(self._largest, int(unique[-1]) if len(unique) else -1)
        return repeated


def _problems(
    copies: Copies, manifest: Manifest, shard: ShardInfo, ids: _Ids, tick: Tick | None
) -> Iterator[str]:
    num_bytes = copies.num_bytes(shard)
    if num_bytes is None:
        yield "the file is missing"
        return
    if num_bytes != shard.num_bytes:
        yield f"the file has {num_bytes:,} bytes, not {shard.num_bytes:,}"
        return
    try:
        copy = copies.read(shard, tick)
        if copy.xxh3_128 == shard.xxh3_128:
            yield from _structure(manifest, shard, ShardReader(copy.path), ids)
        else:  # HDF5 is not asked about damaged files: it can hang on them
            yield f"the checksum is {copy.xxh3_128}, not {shard.xxh3_128}"
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
    repeated = ids.add(reader.sample_id)
    if len(repeated):
        yield f"{len(repeated):,} sample ids occur more than once, as {repeated[0]}"


def _field_problems(
    manifest: Manifest, reader: ShardReader, layout: ShardLayout, info: FieldInfo
) -> Iterator[str]:
    if layout.is_ragged(info.name) != (info.layout == "ragged"):
        yield f"'{info.name}' is not {info.layout}"
        return
    if info.layout == "ragged":
        yield from _ragged_problems(reader, info)
        return
    values = reader.fixed(info.name)
    if values.dtype != np.dtype(info.dtype) or values.shape[1:] != info.shape:
        yield f"'{info.name}' is {values.dtype} {values.shape[1:]}, not {info.dtype} {info.shape}"
    elif (
        info.name == "label"
        and manifest.classes
        and ((values < 0) | (values >= len(manifest.classes))).any()
    ):
        yield f"a label is not one of the {len(manifest.classes)} classes"


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
