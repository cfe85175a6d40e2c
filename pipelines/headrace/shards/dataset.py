"""One split of a dataset as if it were one array per field."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.files.manifest import FieldInfo
from headrace.files.manifest_file import read_manifest
from headrace.shards import format as names
from headrace.shards.chunks import ChunkTables, read_rows
from headrace.shards.format import MEND
from headrace.shards.mapped import MappedShards
from headrace.shards.reader import ShardReader
from headrace.shards.shard_locations import ShardPlaces, ShardSource

_SAMPLE_ID = FieldInfo(name=names.SAMPLE_ID, dtype="int64", layout="fixed")


class ShardedDataset:
    """Samples of one split over all its shards.

    Opens a shard when one of its samples is first read. Safe to use before and after a fork, to
    send to another process, and from threads. `indices` are always positions in the split,
    `(n,) int64`, in any order, repeats allowed. Methods that take them raise an `IndexError` for
    positions outside the split, and a `ShardError` if a shard is damaged or the field has another
    layout.

    `folder` holds `manifest.json`, and shards that do not come from `source`. `fold` of split
    `train` is split `val`; None keeps all folds together. Shards with the files `skipped` are left
    out, as if the dataset never had them.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        source: ShardSource | None = None,
        fold: int | None = None,
        skipped: Collection[str] = (),
    ) -> None:
        self.folder = Path(folder)
        self.split = split
        self.manifest = read_manifest(self.folder).without(skipped).with_fold(fold)
        self.shards = self.manifest.shards_of(split)
        self.places = ShardPlaces(self.folder, self.shards, source, self._moved)
        paths = [self.places.path(number) for number in range(len(self.shards))]
        self._mapped = MappedShards(split, self.shards, paths)
        self._chunks = ChunkTables()

    def __len__(self) -> int:
        return len(self._mapped)

    @property
    def memory(self) -> NDArray[np.uint8]:
        """All mapped shards, `(num_bytes,) uint8`; always the same array.

        Only bytes of `rows` may be read, and nothing may be written.
        """
        return self._mapped.content

    def field(self, name: str) -> FieldInfo:
        """Return a field by name; `sample_id` is one, too."""
        return _SAMPLE_ID if name == names.SAMPLE_ID else self.manifest.field(name)

    def shard_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard of each sample, `(n,) int64`."""
        return self._mapped.shard_of(indices)

    def table(self, field: str, shard_of: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return a field of uncompressed numbers in memory, `(len(self),)`; None if too large.

        Valid in `holding`. Numbers of other shards than `shard_of` may be missing.
        """
        return self._mapped.table(_key(field), _row(self.field(field)), shard_of)

    def rows(
        self, field: str, indices: NDArray[np.int64], shard_of: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return the first byte in `memory` of an uncompressed fixed field's samples, `(n,) int64`.

        Valid in `holding`. `shard_of` is the shard of each, if it is known.
        """
        info = self.field(field)
        if info.layout != "fixed" or info.codec != "none":
            raise ShardError(f"Field '{field}' cannot be mapped row by row", "Use `gather`.")
        if shard_of is None:
            shard_of = self.shard_of(indices)
        return self._mapped.starts(_key(field), _row(info), indices, shard_of)

    def gather(
        self, field: str, indices: NDArray[np.int64], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return samples of a fixed field in the order of `indices`, `(n, *shape)` of its dtype.

        They are written into `out`, if it is given.
        """
        info = self.field(field)
        if info.layout != "fixed":
            raise ShardError(f"Field '{field}' is ragged", "Use `items`.")
        if out is None:
            out = np.empty((len(indices), *info.shape), dtype=info.dtype)
        with self.holding(indices):
            for number, positions, local in self._mapped.by_shard(indices):
                place = self._mapped.check(number, _key(field), _row(info))
                reader = self._mapped.reader(number)
                if place.chunk_rows:
                    self._decompress(reader, _key(field), local, (out, positions))
                elif len(positions) == len(indices):
                    np.take(reader.array(_key(field)), local, axis=0, out=out, mode="clip")
                else:
                    out[positions] = reader.array(_key(field))[local]
        return out

    def items(self, field: str, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the bytes of samples of a ragged field, as views that are valid in `holding`."""
        if self.field(field).layout != "ragged":
            raise ShardError(f"Field '{field}' is of fixed shape", "Use `gather`.")
        spans = self._numbers(f"{_key(field)}/{names.OFFSETS}", np.dtype("int64"), indices, 2)
        shard_of = self._mapped.shard_of(indices)
        spans += self._mapped.data_starts(_key(field), shard_of)[:, None]
        memory = self.memory
        return [memory[start:stop] for start, stop in spans.tolist()]

    def shapes(self, field: str, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return shapes of samples of a ragged field, `(n, ndim) int64`; valid in `holding`."""
        axes = self.field(field).ndim
        if axes is None:
            raise ShardError(f"Field '{field}' has no shapes")
        row = np.dtype(("int64", (axes,)))
        return self._numbers(f"{_key(field)}/{names.SHAPES}", row, indices, axes)

    def sources(self, indices: NDArray[np.int64]) -> list[str]:
        """Return source paths of samples, relative to the folder they were packed from."""
        found = [""] * len(indices)
        with self.holding(indices):
            for number, positions, local in self._mapped.by_shard(indices):
                paths = self._mapped.reader(number).sources(local)
                for position, path in zip(positions.tolist(), paths, strict=True):
                    found[position] = path
        return found

    def checksums(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return checksums from packing, `(n,) uint64`; valid in `holding`."""
        row = np.dtype("uint64")
        return self._numbers(names.CHECKSUM, row, indices, 1)[:, 0].view(np.uint64)

    def shards_with(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the shards that hold samples, `(num_shards,) int64`, sorted."""
        return np.unique(self._mapped.shard_of(indices))

    def holding(self, indices: NDArray[np.int64]) -> AbstractContextManager[None]:
        """Keep the shards of samples mappable while a block runs; free of cost if all are near.

        Every read does so by itself. Around several reads of the same samples it prevents that a
        shard is fetched twice.
        """
        if self.places.is_whole:
            return nullcontext()
        return self.places.holding(self.shards_with(indices).tolist())

    def _decompress(
        self,
        reader: ShardReader,
        key: str,
        local: NDArray[np.int64],
        target: tuple[NDArray[Any], NDArray[np.int64]],
    ) -> None:
        out, positions = target
        table = self._chunks.table(reader.path, key)
        if table is None:
            out[positions] = read_rows(reader.path, key, local)
        else:
            table.fill(reader.mapped(), local, out, positions)

    def _moved(self, number: int, path: Path | None) -> None:
        before = self._mapped.move(number, path or self.folder / self.shards[number].file)
        if before is not None:
            self._chunks.forget(before)

    def _numbers(
        self, key: str, row: np.dtype[Any], indices: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        """Return the first `width` integers of each row, `(n, width) int64`."""
        if width == 0:
            return np.empty((len(indices), 0), dtype=np.int64)
        starts = self._mapped.starts(key, row, indices, self.shard_of(indices))
        found: NDArray[np.int64] = self.memory[starts[:, None] + np.arange(8 * width)].view("<i8")
        return found


def _key(field: str) -> str:
    return field if field == names.SAMPLE_ID else f"{names.FIELDS_GROUP}/{field}"


def _row(info: FieldInfo) -> np.dtype[Any]:
    return np.dtype((info.dtype, info.shape))


def check_samples(dataset: ShardedDataset, indices: NDArray[np.int64]) -> None:
    """Raise if samples differ from what was packed, byte for byte; call it inside `holding`.

    The `ShardError` names the shard and the samples.
    """
    stored = dataset.checksums(indices)
    found = names.sample_checksums(
        [_sample_bytes(dataset, f, indices) for f in dataset.manifest.fields]
    )
    damaged = np.sort(indices[found != stored])
    if len(damaged):
        shards = dataset.shards_with(damaged)
        files = ", ".join(dataset.shards[number].file for number in shards)
        raise ShardError(
            f"Damaged samples ({len(damaged):,}) of split '{dataset.split}' between "
            f"{damaged[0]:,} and {damaged[-1]:,}, in {files} of {dataset.folder}; the first is "
            f"{dataset.sources(damaged[:1])[0]}",
            MEND,
        )


def _sample_bytes(
    dataset: ShardedDataset, info: FieldInfo, indices: NDArray[np.int64]
) -> Sequence[NDArray[np.uint8]]:
    if info.layout == "ragged":
        return dataset.items(info.name, indices)
    values = dataset.gather(info.name, indices)
    rows: NDArray[np.uint8] = values.reshape(len(values), -1).view(np.uint8)
    return list(rows)
