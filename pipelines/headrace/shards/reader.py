"""Reads one shard by mapping it into memory; HDF5 only tells where the arrays lie.

A reader that is pickled carries no open file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError, nearest
from headrace.shards import format as names
from headrace.shards.chunks import OpenFiles
from headrace.shards.format import MEND, Ragged
from headrace.shards.layout import ArrayPlace, ShardLayout, read_layout
from headrace.shards.region import Region


class ShardReader:
    """Arrays of one shard, mapped read-only.

    Safe to use before and after a fork, to send to another process, and from threads.

    Args:
        path: The shard file.
        region: Where to map it; default is a region of its own.
        slot: Slot of the region.

    Raises:
        ShardError: On first use, when the file is missing, truncated or damaged.
    """

    def __init__(self, path: Path, region: Region | None = None, slot: int = 0) -> None:
        self.path = path
        self._region = region
        self._slot = slot
        self._layout: ShardLayout | None = None
        self._map: NDArray[np.uint8] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_map": None}

    @property
    def layout(self) -> ShardLayout:
        """What the shard holds, read once."""
        if self._layout is None:
            self._layout = read_layout(self.path)
        return self._layout

    @property
    def num_samples(self) -> int:
        """Samples in the shard."""
        return self.layout.num_samples

    @property
    def sample_id(self) -> NDArray[np.int64]:
        """Numbers of the samples, `(num_samples,) int64`."""
        return self.array(names.SAMPLE_ID)

    def fixed(self, name: str) -> NDArray[Any]:
        """A field of fixed shape, `(num_samples, *shape)`, read-only.

        It is mapped when it lies in one piece, else decompressed as a whole.

        Raises:
            ShardError: There is no such field of fixed shape.
        """
        key = f"{names.FIELDS_GROUP}/{name}"
        if not self.place(key).chunk_rows:
            return self.array(key)
        with OpenFiles(1) as files:
            return files.rows(self.path, key, np.arange(self.num_samples))

    def ragged(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """A field of varying length.

        Returns:
            `data (num_bytes,) uint8` and `offsets (num_samples + 1,) int64`, mapped read-only.

        Raises:
            ShardError: There is no such field of varying length.
        """
        prefix = f"{names.FIELDS_GROUP}/{name}/"
        return self.array(prefix + names.DATA), self.array(prefix + names.OFFSETS)

    def shapes(self, name: str) -> NDArray[np.int64] | None:
        """Shapes of the samples of a ragged field, `(num_samples, ndim) int64`, if stored."""
        key = f"{names.FIELDS_GROUP}/{name}/{names.SHAPES}"
        return self.array(key) if key in self.layout.arrays else None

    def sources(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Source paths of the samples at these places in the shard."""
        data = self.array(f"{names.SOURCE}/{names.DATA}")
        offsets = self.array(f"{names.SOURCE}/{names.OFFSETS}")
        ragged = Ragged(data=data, offsets=offsets)
        return [ragged.item(int(index)).decode() for index in indices]

    def place(self, key: str) -> ArrayPlace:
        """Where an array lies, by its HDF5 path.

        Raises:
            ShardError: There is no such array.
        """
        place = self.layout.arrays.get(key)
        if place is None:
            name = key.removeprefix(names.FIELDS_GROUP + "/")
            raise ShardError(
                f"{self.path} holds no '{name}' of that layout",
                nearest(name, self.layout.field_names()),
            )
        return place

    def check_offsets(self, group: str) -> None:
        """Make sure that the offsets of a ragged group, as `fields/image`, fit its data.

        Raises:
            ShardError: They do not.
        """
        data, offsets = self.place(f"{group}/{names.DATA}"), self.array(f"{group}/{names.OFFSETS}")
        fit = offsets[0] == 0 and offsets[-1] == data.num_bytes and (np.diff(offsets) >= 0).all()
        if offsets.dtype != np.dtype("<i8") or not fit:
            raise ShardError(
                f"The shard {self.path} is damaged: the offsets of '{group}' do not fit its data",
                MEND,
            )

    def mapped(self) -> NDArray[np.uint8]:
        """The whole file, `(num_bytes,) uint8`, mapped read-only.

        Raises:
            ShardError: It is missing, or has another size than it should have.
        """
        if self._map is None:
            if self._region is None:
                self._region, self._slot = Region([self.layout.num_bytes]), 0
            self._map = self._region.map(self._slot, self.path)
        return self._map

    def array(self, key: str) -> NDArray[Any]:
        """An array that is not compressed, by its HDF5 path, mapped read-only.

        Raises:
            ShardError: There is no such array.
        """
        place = self.place(key)
        if place.num_bytes == 0:
            return np.empty(place.shape, dtype=place.dtype)
        part = self.mapped()[place.offset : place.offset + place.num_bytes]
        return part.view(place.dtype).reshape(place.shape)
