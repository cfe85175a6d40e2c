"""Reads one shard by mapping it into memory; HDF5 only tells where the arrays lie.

The file is opened with HDF5 once, without a lock, and closed again before the first sample is
read. So no HDF5 state crosses a fork, and a reader that is pickled carries no open file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError, nearest
from headrace.shards import format as names
from headrace.shards.format import Ragged


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """Where an array lies in the file."""

    dtype: str
    """NumPy dtype with byte order, as in `<f4`."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    offset: int
    """First byte in the file."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """What a shard holds, and where."""

    split: str
    """Split of all samples."""
    num_samples: int
    """Samples in the shard."""
    num_bytes: int
    """Size of the file."""
    arrays: dict[str, ArrayPlace]
    """Every array by its HDF5 path, as in `fields/image` or `source/offsets`."""

    def field_names(self) -> tuple[str, ...]:
        """Names of the fields, sorted."""
        prefix = names.FIELDS_GROUP + "/"
        parts = [key.removeprefix(prefix) for key in self.arrays if key.startswith(prefix)]
        return tuple(sorted({part.split("/")[0] for part in parts}))

    def is_ragged(self, name: str) -> bool:
        """Whether a field has samples of varying length."""
        return f"{names.FIELDS_GROUP}/{name}/{names.DATA}" in self.arrays


def read_layout(path: Path) -> ShardLayout:
    """Read where the arrays of a shard lie.

    Raises:
        ShardError: The file is missing, truncated, damaged, or no shard of this format.
    """
    try:
        # through a Python file: HDF5 neither locks it nor knows it from other openings of it
        with path.open("rb") as stream, h5py.File(stream, "r") as file:
            layout = _layout(path, file, path.stat().st_size)
    except FileNotFoundError:
        raise ShardError(f"The shard {path} is missing", _REPACK) from None
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # HDF5's own have none
            raise ShardError(f"The shard {path} cannot be read: {error.strerror}") from error
        raise ShardError(f"The shard {path} is truncated or damaged: {error}", _REPACK) from error
    _check_places(path, layout)
    return layout


_REPACK = "Run `headrace verify` on the dataset; packing again makes only what is damaged anew."


def _layout(path: Path, file: h5py.File, num_bytes: int) -> ShardLayout:
    version = file.attrs.get(names.FORMAT_ATTRIBUTE)
    if version is None:
        raise ShardError(f"{path} is an HDF5 file, but no headrace shard")
    if int(version) > names.SHARD_FORMAT:
        raise ShardError(
            f"{path} has shard format {int(version)}; this release reads up to "
            f"{names.SHARD_FORMAT}",
            "Upgrade headrace.",
        )
    arrays = {key: _place(path, key, item) for key, item in _datasets(file)}
    return ShardLayout(
        split=str(file.attrs[names.SPLIT_ATTRIBUTE]),
        num_samples=arrays[names.SAMPLE_ID].shape[0],
        num_bytes=num_bytes,
        arrays=arrays,
    )


def _datasets(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, item in group.items():
        if isinstance(item, h5py.Group):
            yield from _datasets(item, f"{prefix}{key}/")
        else:
            yield prefix + key, item


def _place(path: Path, key: str, item: object) -> ArrayPlace:
    if not isinstance(item, h5py.Dataset):
        raise ShardError(f"The shard {path} is damaged: '{key}' is no array", _REPACK)
    offset = item.id.get_offset()
    if offset is None and item.size:
        raise ShardError(f"{path}: '{key}' is not stored in one piece and cannot be mapped")
    return ArrayPlace(dtype=item.dtype.str, shape=tuple(item.shape), offset=offset or 0)


def _check_places(path: Path, layout: ShardLayout) -> None:
    for key, place in layout.arrays.items():
        if place.offset + place.num_bytes > layout.num_bytes:
            raise ShardError(
                f"The shard {path} is truncated: '{key}' ends behind the file", _REPACK
            )
        is_data = key.endswith("/" + names.DATA)
        expected = layout.num_samples + int(key.endswith("/" + names.OFFSETS))
        if not is_data and (not place.shape or place.shape[0] != expected):
            raise ShardError(
                f"The shard {path} is damaged: '{key}' has shape {place.shape} "
                f"for {layout.num_samples} samples",
                _REPACK,
            )


class ShardReader:
    """Arrays of one shard, mapped read-only.

    Safe to use before and after a fork, to send to another process, and from threads.

    Args:
        path: The shard file.

    Raises:
        ShardError: On first use, when the file is missing, truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._layout: ShardLayout | None = None
        self._map: NDArray[np.uint8] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "_layout": self._layout, "_map": None}

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
        return self._array(names.SAMPLE_ID)

    def fixed(self, name: str) -> NDArray[Any]:
        """A field of fixed shape, `(num_samples, *shape)`, mapped read-only.

        Raises:
            ShardError: There is no such field of fixed shape.
        """
        return self._array(f"{names.FIELDS_GROUP}/{name}")

    def ragged(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """A field of varying length.

        Returns:
            `data (num_bytes,) uint8` and `offsets (num_samples + 1,) int64`, mapped read-only.

        Raises:
            ShardError: There is no such field of varying length.
        """
        prefix = f"{names.FIELDS_GROUP}/{name}/"
        return self._array(prefix + names.DATA), self._array(prefix + names.OFFSETS)

    def sources(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Source paths of the samples at these places in the shard."""
        data = self._array(f"{names.SOURCE}/{names.DATA}")
        offsets = self._array(f"{names.SOURCE}/{names.OFFSETS}")
        ragged = Ragged(data=data, offsets=offsets)
        return [ragged.item(int(index)).decode() for index in indices]

    def _array(self, key: str) -> NDArray[Any]:
        place = self.layout.arrays.get(key)
        if place is None:
            name = key.removeprefix(names.FIELDS_GROUP + "/")
            raise ShardError(
                f"{self.path} holds no '{name}' of that layout",
                nearest(name, self.layout.field_names()),
            )
        if place.num_bytes == 0:
            return np.empty(place.shape, dtype=place.dtype)
        part = self._mapped()[place.offset : place.offset + place.num_bytes]
        return part.view(place.dtype).reshape(place.shape)

    def _mapped(self) -> NDArray[np.uint8]:
        if self._map is None:
            self._map = _map_file(self.path, self.layout.num_bytes)
        return self._map


def _map_file(path: Path, num_bytes: int) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ShardError(f"The shard {path} cannot be mapped: {error}", _REPACK) from error
    return np.frombuffer(mapped, dtype=np.uint8)
