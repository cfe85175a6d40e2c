"""All shards of a split in one address space, and the address of each row of each array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.files.manifest import ShardInfo
from headrace.shards import format as names
from headrace.shards.format import MEND
from headrace.shards.reader import ArrayPlace, ShardReader
from headrace.shards.region import Region

_UNKNOWN = np.iinfo(np.int64).min
_MAX_TABLE_BYTES = 2**28
_MAX_SPANS = 2**20


@dataclass(kw_only=True)
class _NumberTable:
    values: NDArray[Any]
    filled: NDArray[np.bool_]
    is_full: bool = False


class MappedShards:
    """Finds rows over all shards of a split; opens a shard when one of its rows is first needed.

    Safe to use before and after a fork, to send to another process, and from threads. `row` is the
    dtype of a row of an array, `np.dtype((element, shape))`. Methods raise a `ShardError` if a
    shard is damaged, or its rows have another dtype. `shards` are in the order of the samples, with
    their files at `paths`.
    """

    def __init__(self, split: str, shards: Sequence[ShardInfo], paths: Sequence[Path]) -> None:
        self._split = split
        self._shards = shards
        self._region = Region([shard.num_bytes for shard in shards])
        self._readers = [
            ShardReader(path, self._region, number) for number, path in enumerate(paths)
        ]
        self._ends = np.cumsum([shard.num_samples for shard in shards], dtype=np.int64)
        self._search = ShardSearch(self._ends)
        self._bases: dict[str, NDArray[np.int64]] = {}
        self._tables: dict[str, _NumberTable] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bases": {}, "_tables": {}}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def content(self) -> NDArray[np.uint8]:
        """All shards, `(num_bytes,) uint8`; only rows of `starts` may be read, nothing written."""
        return self._region.content

    def reader(self, number: int) -> ShardReader:
        """Return a shard by its number; errors name its position in the split."""
        reader, shard = self._readers[number], self._shards[number]
        first = self._first(number)
        place = (
            f"it holds samples {first:,} to {first + shard.num_samples - 1:,} of '{self._split}'"
        )
        try:
            reader.mapped()
        except ShardError as error:
            raise ShardError(f"{error.what}; {place}", error.hint) from error
        if reader.num_samples != shard.num_samples:
            raise ShardError(
                f"{reader.path} has {reader.num_samples:,} samples, the manifest says "
                f"{shard.num_samples:,}; {place}",
                MEND,
            )
        return reader

    def move(self, number: int, path: Path) -> Path | None:
        """Read a shard from another path from now on; no thread may be reading it.

        Return its previous path; None if it is the same.
        """
        old = self._readers[number].path
        if old == path:
            return None
        self._region.release(number)
        for bases in list(self._bases.values()):  # another thread may add one meanwhile
            bases[number] = _UNKNOWN
        self._readers[number] = ShardReader(path, self._region, number)
        return old

    def shard_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each sample's shard number, `(n,) int64`; raise `IndexError` outside the split."""
        wanted = np.ascontiguousarray(indices, dtype=np.int64)
        if len(wanted) and int(wanted.view(np.uint64).max()) >= len(self):  # negative: very large
            raise IndexError(
                f"Index outside split '{self._split}' of {len(self)} samples: "
                f"{wanted.min()} to {wanted.max()}"
            )
        return self._search(wanted)

    def by_shard(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield `(shard, positions in the request, positions in the shard)`."""
        wanted = np.asarray(indices, dtype=np.int64)
        shard_of = self.shard_of(wanted)
        for number in np.unique(shard_of).tolist():
            positions = np.flatnonzero(shard_of == number)
            yield number, positions, wanted[positions] - self._first(number)

    def starts(
        self, key: str, row: np.dtype[Any], indices: NDArray[np.int64], shard_of: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the first byte in `content` of an array's rows `indices (n,) int64`, `(n,) int64`.

        `shard_of` is the result of `shard_of` for them.
        """
        bases = self._bases.get(key)
        if bases is None:
            bases = self._bases[key] = np.full(len(self._shards), _UNKNOWN)
        found = bases[shard_of]
        if len(found) and found.min() == _UNKNOWN:  # first access to a shard
            for number in np.unique(shard_of[found == _UNKNOWN]).tolist():
                bases[number] = self._base(number, key, row)
            found = bases[shard_of]
        return found + indices * row.itemsize

    def table(
        self, key: str, row: np.dtype[Any], shard_of: NDArray[np.int64]
    ) -> NDArray[Any] | None:
        """Return an array of numbers over all shards, `(num_samples,)`; None if too large.

        Reading single numbers from many shards would take as long as samples of several KB. Numbers
        of the shards `shard_of` are present.
        """
        if row.itemsize * len(self) > _MAX_TABLE_BYTES:
            return None
        table = self._tables.get(key)
        if table is None:
            values = np.empty(len(self), dtype=row)
            table = _NumberTable(values=values, filled=np.zeros(len(self._shards), dtype=np.bool_))
            self._tables[key] = table
        if not table.is_full and not table.filled[shard_of].all():
            for number in np.unique(shard_of[~table.filled[shard_of]]).tolist():
                self.check(number, key, row)
                first = self._first(number)
                values = self._readers[number].array(key)
                table.values[first : first + len(values)] = values
                table.filled[number] = True
            table.is_full = bool(table.filled.all())
        return table.values

    def data_starts(self, group: str, shard_of: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first byte in `content` of a ragged group's data by shard, `(n,) int64`."""
        numbers, inverse = np.unique(shard_of, return_inverse=True)
        key = f"{group}/{names.DATA}"
        offsets = [self._readers[number].place(key).offset for number in numbers.tolist()]
        return (self._region.starts[numbers] + np.array(offsets, dtype=np.int64))[inverse]

    def check(self, number: int, key: str, row: np.dtype[Any]) -> ArrayPlace:
        """Raise if an array of a shard has rows of another dtype; return its place."""
        reader, shape = self.reader(number), (self._shards[number].num_samples, *row.shape)
        place = reader.place(key)
        if key.endswith("/" + names.OFFSETS):
            reader.check_offsets(key.removesuffix("/" + names.OFFSETS))
        elif place.shape != shape or np.dtype(place.dtype) != row.base:
            raise ShardError(
                f"{reader.path}: '{key}' is {np.dtype(place.dtype)} {place.shape}, "
                f"the manifest says {row.base} {shape}",
                MEND,
            )
        return place

    def _base(self, number: int, key: str, row: np.dtype[Any]) -> int:
        place = self.check(number, key, row)
        if place.chunk_rows:
            raise ShardError(f"{self._readers[number].path}: '{key}' is compressed")
        start = int(self._region.starts[number]) + place.offset
        return start - self._first(number) * row.itemsize

    def _first(self, number: int) -> int:
        return int(self._ends[number]) - self._shards[number].num_samples


class ShardSearch:
    """Finds the shard of each of many samples; `ends (num_shards,) int64` end them.

    The samples are cut into spans that at most two shards share, so that the shard of a sample is
    that of the first of its span, or the next one. If a shard is too small for that, the ends are
    searched, which takes 20 ns more per sample with 40 shards.
    """

    def __init__(self, ends: NDArray[np.int64]) -> None:
        self._ends = ends
        self._firsts: NDArray[np.int64] | None = None
        num_samples = int(ends[-1]) if len(ends) else 0
        smallest = int(np.diff(ends[:-1], prepend=0).min(initial=num_samples))
        self._shift = smallest.bit_length() - 1
        if smallest and num_samples >> self._shift <= _MAX_SPANS:
            starts = np.arange(0, num_samples, 1 << self._shift, dtype=np.int64)
            self._firsts = ends.searchsorted(starts, side="right")

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each sample's shard number; `places (n,) int64` lie within the split."""
        if self._firsts is None:
            return self._ends.searchsorted(places, side="right")
        found: NDArray[np.int64] = self._firsts[places >> self._shift]
        found += places >= self._ends[found]
        return found
