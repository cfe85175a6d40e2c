"""Reads one shard by mapping it into memory; HDF5 only provides the positions of its arrays.

The file is opened with HDF5 once, without a lock, and closed before the first sample is read. So no
HDF5 state of mapped arrays survives into a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headrace.errors import ShardError, nearest
from headrace.record import Record
from headrace.shards import format as names
from headrace.shards.chunks import read_rows
from headrace.shards.format import MEND
from headrace.shards.region import Region

_MOST_GROUPS = 4  # levels of groups
_DAMAGE = (OSError, LookupError, RuntimeError, TypeError, ValueError, OverflowError, MemoryError)


class ArrayPlace(Record):
    """An array of a shard, and its position in the file."""

    name: str
    """Path in the HDF5 file, such as `fields/image`."""
    dtype: str
    """NumPy dtype with byte order, such as `<f4`."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    offset: int
    """First byte in the file; 0 for a chunked array."""
    num_bytes: int
    chunk_rows: int = Field(default=0, exclude=True)
    """Rows in a compressed chunk; 0 if the array is contiguous and can be mapped."""


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Content of a shard, with positions."""

    split: str
    num_samples: int
    num_bytes: int
    arrays: dict[str, ArrayPlace]
    """Every array by its HDF5 path, such as `fields/image` or `source/offsets`."""

    def field_names(self) -> tuple[str, ...]:
        """Return the names of the fields, sorted."""
        prefix = names.FIELDS_GROUP + "/"
        parts = [key.removeprefix(prefix) for key in self.arrays if key.startswith(prefix)]
        return tuple(sorted({part.split("/")[0] for part in parts}))

    def is_ragged(self, name: str) -> bool:
        """Whether a field has samples of varying length."""
        return f"{names.FIELDS_GROUP}/{name}/{names.DATA}" in self.arrays


class ShardReader:
    """Arrays of one shard, mapped read-only on first use; into a slot of a region.

    Safe to use before and after a fork, to send to another process, and from threads. All methods
    raise a `ShardError` if the file is missing, truncated or damaged, or lacks the array.
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
        """Content of the shard, read once."""
        if self._layout is None:
            self._layout = read_layout(self.path)
        return self._layout

    @property
    def num_samples(self) -> int:
        """Samples in the shard."""
        return self.layout.num_samples

    def fixed(self, name: str) -> NDArray[Any]:
        """Return a field of fixed shape, `(num_samples, *shape)`: mapped, or decompressed."""
        key = f"{names.FIELDS_GROUP}/{name}"
        if not self.place(key).chunk_rows:
            return self.array(key)
        return read_rows(self.path, key, np.arange(self.num_samples))

    def ragged(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return a ragged field's `data (num_bytes,) uint8`, `offsets (num_samples + 1,) int64`."""
        prefix = f"{names.FIELDS_GROUP}/{name}/"
        return self.array(prefix + names.DATA), self.array(prefix + names.OFFSETS)

    def shapes(self, name: str) -> NDArray[np.int64] | None:
        """Return the shapes of a ragged field's samples, `(num_samples, ndim) int64`, if stored."""
        key = f"{names.FIELDS_GROUP}/{name}/{names.SHAPES}"
        return self.array(key) if key in self.layout.arrays else None

    def sources(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return source paths of the samples at these positions in the shard."""
        data = self.array(f"{names.SOURCE}/{names.DATA}")
        offsets = self.array(f"{names.SOURCE}/{names.OFFSETS}")
        return [data[offsets[at] : offsets[at + 1]].tobytes().decode() for at in indices]

    def place(self, key: str) -> ArrayPlace:
        """Return the position of an array, by its HDF5 path."""
        place = self.layout.arrays.get(key)
        if place is None:
            name = key.removeprefix(names.FIELDS_GROUP + "/")
            raise ShardError(
                f"{self.path} has no '{name}' of that layout",
                nearest(name, self.layout.field_names()),
            )
        return place

    def check_offsets(self, group: str) -> None:
        """Raise if the offsets of a ragged group, such as `fields/image`, do not fit its data."""
        data, offsets = self.place(f"{group}/{names.DATA}"), self.array(f"{group}/{names.OFFSETS}")
        fit = offsets[0] == 0 and offsets[-1] == data.num_bytes and (np.diff(offsets) >= 0).all()
        if offsets.dtype != np.dtype("<i8") or not fit:
            raise ShardError(
                f"The shard {self.path} is damaged: the offsets of '{group}' do not fit its data",
                MEND,
            )

    def mapped(self) -> NDArray[np.uint8]:
        """Return the whole file, `(num_bytes,) uint8`, mapped read-only."""
        if self._map is None:
            if self._region is None:
                self._region, self._slot = Region([self.layout.num_bytes]), 0
            self._map = self._region.map(self._slot, self.path)
        return self._map

    def array(self, key: str) -> NDArray[Any]:
        """Return an uncompressed array, by its HDF5 path, mapped read-only."""
        place = self.place(key)
        if place.num_bytes == 0:
            return np.empty(place.shape, dtype=place.dtype)
        part = self.mapped()[place.offset : place.offset + place.num_bytes]
        return part.view(place.dtype).reshape(place.shape)


def read_layout(path: Path) -> ShardLayout:
    """Read the positions of a shard's arrays; raise `ShardError` if it is missing or damaged."""
    try:
        # by a Python file: HDF5 neither locks it nor confuses it with other openings of it
        with path.open("rb") as stream, h5py.File(stream, "r") as file:
            layout = _layout(path, file, path.stat().st_size)
    except FileNotFoundError:
        raise ShardError(f"The shard {path} is missing", MEND) from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # HDF5's own errors have none
            raise ShardError(f"The shard {path} cannot be read: {error.strerror}") from error
        raise ShardError(f"The shard {path} is truncated or damaged: {error}", MEND) from error
    _check_places(path, layout)
    return layout


def _layout(path: Path, file: h5py.File, num_bytes: int) -> ShardLayout:
    version = file.attrs.get(names.FORMAT_ATTRIBUTE)
    if version is None:
        raise ShardError(f"{path} is an HDF5 file, but not a headrace shard")
    if int(version) > names.SHARD_FORMAT:
        raise ShardError(
            f"{path} has shard format {int(version)}; this release reads up to "
            f"{names.SHARD_FORMAT}",
            "Upgrade headrace.",
        )
    arrays = {key: _place(path, key, item) for key, item in _datasets(file)}
    if arrays[names.SAMPLE_ID].chunk_rows:  # so that there are at most as many samples as bytes
        raise ValueError(f"'{names.SAMPLE_ID}' is not contiguous")
    return ShardLayout(
        split=str(file.attrs[names.SPLIT_ATTRIBUTE]),
        num_samples=arrays[names.SAMPLE_ID].shape[0],
        num_bytes=num_bytes,
        arrays=arrays,
    )


def _datasets(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise TypeError(f"'{prefix}{key}' is a link")
        item = group[key]
        if isinstance(item, h5py.Group):
            if prefix.count("/") >= _MOST_GROUPS:
                raise ValueError(f"'{prefix}{key}' is nested too deeply")
            yield from _datasets(item, f"{prefix}{key}/")
        else:
            yield prefix + key, item


def _place(path: Path, key: str, item: object) -> ArrayPlace:
    if not isinstance(item, h5py.Dataset):
        raise ShardError(f"The shard {path} is damaged: '{key}' is not an array", MEND)
    offset = item.id.get_offset() if item.chunks is None else 0
    if offset is None and item.size:
        raise ShardError(f"{path}: '{key}' is not contiguous and cannot be mapped")
    return ArrayPlace(
        name=key,
        dtype=item.dtype.str,
        shape=tuple(item.shape),
        offset=offset or 0,
        num_bytes=item.size * item.dtype.itemsize,
        chunk_rows=item.chunks[0] if item.chunks else 0,
    )


def _check_places(path: Path, layout: ShardLayout) -> None:
    for key, place in layout.arrays.items():
        if not place.chunk_rows and place.offset + place.num_bytes > layout.num_bytes:
            raise ShardError(f"The shard {path} is truncated: '{key}' ends behind the file", MEND)
        is_data = key.endswith("/" + names.DATA)
        expected = layout.num_samples + int(key.endswith("/" + names.OFFSETS))
        if not is_data and (not place.shape or place.shape[0] != expected):
            raise ShardError(
                f"The shard {path} is damaged: '{key}' has shape {place.shape} "
                f"for {layout.num_samples} samples",
                MEND,
            )
