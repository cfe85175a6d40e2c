"""Rows of compressed arrays, by HDF5 and the filters of hdf5plugin."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards.chunk_table import ChunkTable
from headrace.shards.format import MEND

_MAX_FILES = 64


class OpenFiles:
    """Shards open for reading, those used last; a forked or spawned process opens its own.

    Safe from threads, which take turns: HDF5 lets only one in.

    Args:
        max_files: Files kept open at most.
    """

    def __init__(self, max_files: int = _MAX_FILES) -> None:
        self._max_files = max_files
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, h5py.File] = OrderedDict()
        self._tables: dict[tuple[Path, str], ChunkTable | None] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_max_files": self._max_files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_max_files"])  # type: ignore[misc]

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for path in list(self._files):
            self.close(path)

    def rows(self, path: Path, key: str, wanted: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a compressed array; every chunk is decompressed once.

        Args:
            path: The shard.
            key: HDF5 path of the array.
            wanted: Rows, `(n,) int64`, in any order, repeats allowed.

        Returns:
            `(n, *shape)`.

        Raises:
            ShardError: The shard cannot be read, or a chunk is damaged.
        """
        with self._array(path, key) as array:
            return _rows(array, wanted)

    def table(self, path: Path, key: str) -> ChunkTable | None:
        """Where the chunks of a compressed array lie; None when `rows` must read them.

        Raises:
            ShardError: The shard cannot be read.
        """
        place = (path, key)
        if place not in self._tables:
            with self._array(path, key) as array:
                self._tables[place] = ChunkTable.of(array, f"'{key}' in {path}")
        return self._tables[place]

    def close(self, path: Path) -> None:
        """Forget a file, as one that is to be removed."""
        with self._lock:
            for place in [place for place in self._tables if place[0] == path]:
                del self._tables[place]
            file = self._files.pop(path, None)
            if file is not None:
                file.close()

    @contextmanager
    def _array(self, path: Path, key: str) -> Iterator[h5py.Dataset]:
        """An array, for one thread at a time."""
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            try:
                yield self._opened(path)[key]
            except (OSError, LookupError, RuntimeError, ValueError) as error:
                raise ShardError(
                    f"The shard {path} cannot be read at '{key}': {error}",
                    MEND,
                ) from error

    def _opened(self, path: Path) -> h5py.File:
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        import hdf5plugin  # noqa: F401  registers the filters; slow to import

        while len(self._files) >= self._max_files:
            self._files.popitem(last=False)[1].close()
        self._files[path] = h5py.File(path, "r", locking=False)
        return self._files[path]


def _rows(array: h5py.Dataset, wanted: NDArray[np.int64]) -> NDArray[Any]:
    values = np.empty((len(wanted), *array.shape[1:]), dtype=array.dtype)
    chunk_of = wanted // array.chunks[0]
    for number in np.unique(chunk_of).tolist():
        first = number * array.chunks[0]
        chunk = array[first : first + array.chunks[0]]
        here = np.flatnonzero(chunk_of == number)
        values[here] = chunk[wanted[here] - first]
    return values
