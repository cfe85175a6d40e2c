"""One split of a dataset as if it were one array a field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards import format as names
from headrace.shards.format import Ragged
from headrace.shards.places import ShardPlaces, ShardSource
from headrace.shards.reader import ShardReader
from headrace.storage.manifest import FieldInfo, read_manifest

_SAMPLE_ID = FieldInfo(name=names.SAMPLE_ID, dtype="int64", layout="fixed")


class ShardedDataset:
    """Samples of one split over all its shards.

    Opens a shard when a sample of it is first asked for. Safe to use before and after a fork, to
    send to another process, and from threads.

    Args:
        folder: Folder with `manifest.json`; a staged copy will do.
        split: Name of the split.
        source: Where shards come from that are not in `folder`.

    Raises:
        ManifestError: No dataset there, or no such split.
    """

    def __init__(self, folder: Path, split: str, source: ShardSource | None = None) -> None:
        self.folder = Path(folder)
        self.split = split
        self.manifest = read_manifest(self.folder)
        self.shards = self.manifest.shards_of(split)
        self.places = ShardPlaces(self.folder, self.shards, source, self._moved)
        self._readers = [ShardReader(self.places.path(n)) for n in range(len(self.shards))]
        self._ends = np.cumsum([shard.num_samples for shard in self.shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def field(self, name: str) -> FieldInfo:
        """Field by name; `sample_id` is one, too.

        Raises:
            ManifestError: There is no such field.
        """
        return _SAMPLE_ID if name == names.SAMPLE_ID else self.manifest.field(name)

    def gather(
        self, field: str, indices: NDArray[np.int64], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Samples of a fixed field in the order asked for.

        Args:
            field: Name of a field of fixed shape, or `sample_id`.
            indices: Places in the split, `(n,) int64`, in any order, repeats allowed.
            out: Array `(n, *shape)` to fill; default is a new one.

        Returns:
            `(n, *shape)` of the field's dtype.

        Raises:
            ShardError: The field is ragged, or a shard is damaged.
            IndexError: An index is outside the split.
        """
        info = self.field(field)
        if info.layout != "fixed":
            raise ShardError(f"Field '{field}' is ragged", "Use `gather_ragged`.")
        if out is None:
            out = np.empty((len(indices), *info.shape), dtype=info.dtype)
        with self.holding(indices):
            for number, positions, local in self._by_shard(indices):
                values = self._fixed(number, info)
                if len(positions) == len(indices):
                    np.take(values, local, axis=0, out=out, mode="clip")
                else:
                    out[positions] = values[local]
        return out

    def gather_ragged(self, field: str, indices: NDArray[np.int64]) -> Ragged:
        """Samples of a ragged field in the order asked for.

        Args:
            field: Name of a ragged field.
            indices: Places in the split, `(n,) int64`, in any order, repeats allowed.

        Returns:
            `data (num_bytes,) uint8` and `offsets (n + 1,) int64`.

        Raises:
            ShardError: The field is of fixed shape, or a shard is damaged.
            IndexError: An index is outside the split.
        """
        if self.field(field).layout != "ragged":
            raise ShardError(f"Field '{field}' is of fixed shape", "Use `gather`.")
        items: list[NDArray[np.uint8]] = [np.empty(0, dtype=np.uint8)] * len(indices)
        with self.holding(indices):
            for number, positions, local in self._by_shard(indices):
                data, offsets = self._readers[number].ragged(field)
                for position, index in zip(positions.tolist(), local.tolist(), strict=True):
                    items[position] = data[offsets[index] : offsets[index + 1]]
            data = np.concatenate(items) if items else np.empty(0, dtype=np.uint8)
        offsets = np.zeros(len(items) + 1, dtype=np.int64)
        np.cumsum([len(item) for item in items], out=offsets[1:])
        return Ragged(data=data, offsets=offsets)

    def sources(self, indices: NDArray[np.int64]) -> list[str]:
        """Source paths of samples, relative to the folder they were packed from."""
        found = [""] * len(indices)
        with self.holding(indices):
            for number, positions, local in self._by_shard(indices):
                paths = self._readers[number].sources(local)
                for position, path in zip(positions.tolist(), paths, strict=True):
                    found[position] = path
        return found

    def shards_with(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the shards that hold samples, `(num_shards,) int64`, sorted."""
        return np.unique(np.searchsorted(self._ends, indices, side="right"))

    def holding(self, indices: NDArray[np.int64]) -> AbstractContextManager[None]:
        """Keep the shards of samples mappable while a block runs; free when all are near.

        Every read does so by itself; around several reads of the same samples it makes sure that
        no shard is fetched twice.
        """
        return self.places.holding(self.shards_with(indices).tolist() if self.places.far else ())

    def _moved(self, number: int, path: Path | None) -> None:
        """Read a shard from another path from now on; nobody reads it at the moment."""
        new = path or self.folder / self.shards[number].file
        if self._readers[number].path != new:
            self._readers[number] = ShardReader(new)

    def _by_shard(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield `(shard, positions in the request, places in the shard)`."""
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(
                f"Index outside split '{self.split}' of {len(self)} samples: "
                f"{wanted.min()} to {wanted.max()}"
            )
        shard_of = np.searchsorted(self._ends, wanted, side="right")
        for number in np.unique(shard_of).tolist():
            positions = np.flatnonzero(shard_of == number)
            start = int(self._ends[number - 1]) if number else 0
            yield number, positions, wanted[positions] - start

    def _fixed(self, number: int, info: FieldInfo) -> NDArray[Any]:
        reader = self._readers[number]
        is_id = info.name == names.SAMPLE_ID
        values = reader.sample_id if is_id else reader.fixed(info.name)
        expected = (self.shards[number].num_samples, *info.shape)
        if values.shape != expected or values.dtype != np.dtype(info.dtype):
            raise ShardError(
                f"{reader.path}: '{info.name}' is {values.dtype} {values.shape}, "
                f"the manifest says {info.dtype} {expected}",
                "Run `headrace verify` on the dataset.",
            )
        return values
