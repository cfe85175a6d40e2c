"""HDF5 files of other programs: their datasets as columns, one row per sample."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError
from headrace.fields.array import is_of_numbers
from headrace.shards.format import FORMAT_ATTRIBUTE, most_bytes

Cell: TypeAlias = "NDArray[Any] | bytes | str | int | float"
Limit: TypeAlias = Callable[[int], AbstractContextManager[Any]]

_GAP_ROWS = 16
_GAP_BYTES = 2**16
_RUN_BYTES = 2**24
_ROW_BYTES = 2**26  # most bytes of a row, or of a chunk, that may consist of fill values
_DAMAGE = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError,
    SystemError,
)  # fmt: skip
"""h5py's errors for invalid HDF5; `MemoryError` for absurd sizes, `SystemError` by callbacks."""


@dataclass(frozen=True, kw_only=True)
class ForeignColumn:
    """A dataset of an HDF5 file whose first axis is the samples'."""

    kind: Literal["value", "array", "bytes", "text", "unknown"]
    """Numbers `(num_rows,)`, arrays `(num_rows, ...)` or of varying length, bytes of varying
    length, text, or unknown."""
    dtype: str
    """numpy name of the elements' dtype."""
    ndim: int
    """Axes of one sample."""
    num_rows: int


class _CollectorPause:
    """Pauses Python's garbage collector while h5py reads files through Python objects.

    h5py holds its lock while it waits for the thread that reads from the network. A collection in
    that thread that frees an object of h5py would wait for this lock: neither would go on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open = 0
        self._was_enabled = False

    def change(self, step: int) -> None:
        with self._lock:
            self._was_enabled = self._was_enabled if self._num_open else gc.isenabled()
            self._num_open += step
            (gc.enable if self._was_enabled and not self._num_open else gc.disable)()


_PAUSE = _CollectorPause()


class ForeignFile:
    """An HDF5 file, opened for reading; a context manager.

    `name` is for messages; `limited` encloses each read, given its bytes.

    All methods raise a `DataError` if it is damaged, is a shard of headrace, or keeps values in
    other files.
    """

    def __init__(self, source: Path | BinaryIO, name: str, limited: Limit = nullcontext) -> None:
        self._limited = limited
        self._name = name
        with ExitStack() as stack:
            if not isinstance(source, Path):
                _PAUSE.change(1)
                stack.callback(_PAUSE.change, -1)
            with self._placed(""):
                self._file = stack.enter_context(h5py.File(source, "r", locking=False))
                is_shard = FORMAT_ATTRIBUTE in self._file.attrs
            self._open = stack.pop_all()
        if is_shard:
            self._open.close()
            raise DataError(
                f"{name} is a shard that headrace packed",
                "Set dataset.path to the folder of its manifest.json, instead of dataset.source.",
            )

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def columns(self) -> Mapping[str, ForeignColumn]:
        """Return datasets by path, those in groups as `group/name`.

        `not_fields` has the reason why others are not fields: scalars and links.
        """
        found: dict[str, ForeignColumn] = {}
        self.not_fields: dict[str, str] = {}

        def visit(path: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not item.shape:
                self.not_fields[path] = "one value, not one per row"
            elif isinstance(item, h5py.Dataset):
                self._check_inside(path, item)
                self._check_claim(path, item)
                found[path] = _column(item)

        def visit_link(path: str, link: object) -> None:
            if not isinstance(link, h5py.HardLink):
                self.not_fields[path] = "a link"

        with self._placed(""):
            self._file.visititems(visit)
            self._file.visititems_links(visit_link)
        return found

    def num_bytes(self, path: str) -> int:
        """Return the uncompressed bytes of all rows of a dataset.

        For text and arrays of varying length, whose size the file lacks, those of the file.
        """
        dataset = self._file[path]
        return int(self._file.id.get_filesize() if dataset.dtype.hasobject else dataset.nbytes)

    def rows(self, path: str, rows: Sequence[int]) -> list[Cell]:
        """Return some rows of a dataset, in the given order; neighbours are read at once.

        At most 16 MiB, or one row of chunks, are read in addition. Text is bytes.
        """
        wanted, at = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        found: list[Cell] = []
        for mine, block in self._blocks(path, wanted):
            for row in mine - mine[0]:
                cell = _cell(block[row])
                # a view would keep the rows between in memory
                is_view = isinstance(cell, np.ndarray) and len(block) > len(mine)
                found.append(np.copy(cell) if is_view else cell)
        return [found[place] for place in at]

    def numbers(self, path: str, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return some rows, ascending, `(num_rows, *shape)`; None if they are not numbers.

        As with `rows`, neighbours are read at once.
        """
        dataset = self._file[path]
        if dataset.dtype.hasobject or not is_of_numbers(dataset.dtype):
            return None
        found = np.empty((len(rows), *dataset.shape[1:]), dataset.dtype.newbyteorder("="))
        start = 0
        for mine, block in self._blocks(path, rows):
            found[start : start + len(mine)] = block[mine - mine[0]]
            start += len(mine)
        return found

    def _blocks(
        self, path: str, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield ascending rows that are read at once, and the data from the first to the last."""
        dataset = self._file[path]
        for mine in _runs(dataset, rows):
            place = f"'{path}', rows {mine[0]:,} to {mine[-1]:,}: "
            with self._placed(place), self._limited(_read_bytes(dataset, mine)):
                block = dataset[mine[0] : mine[-1] + 1]
            yield mine, block

    def _check_inside(self, path: str, dataset: h5py.Dataset) -> None:
        if dataset.external or dataset.is_virtual:
            raise DataError(
                f"'{path}' of {self._name} keeps its values in other files",
                "Copy it into one file (h5repack), or pack those files.",
            )

    def _check_claim(self, path: str, dataset: h5py.Dataset) -> None:
        """Raise if the file cannot hold all its rows, before memory is allocated for them."""
        num_rows, item_bytes = dataset.shape[0], dataset.id.get_type().get_size()
        row_bytes = math.prod(dataset.shape[1:]) * item_bytes
        at_once = max(row_bytes, math.prod(dataset.chunks or (0,)) * item_bytes)
        stored = min(dataset.id.get_storage_size(), self._file.id.get_filesize())
        room = most_bytes(stored)
        if num_rows > room or at_once > max(room, _ROW_BYTES):
            raise DataError(
                f"'{path}' of {self._name} claims {num_rows:,} rows, read {at_once:,} bytes "
                f"at once, but the file holds {stored:,} bytes of it",
                "Write it again, or name the datasets that count in dataset.fields.",
            )

    @contextmanager
    def _placed(self, place: str) -> Iterator[None]:
        """Add to h5py's errors the position in the file."""
        try:
            yield
        except _DAMAGE as error:
            why = error.__cause__ if isinstance(error, SystemError) else error
            raise DataError(
                f"{self._name} cannot be read as an HDF5 file: {place}{why}",
                "Write or copy it again.",
            ) from error


def _column(dataset: h5py.Dataset) -> ForeignColumn:
    kind: Literal["value", "array", "bytes", "text", "unknown"] = "unknown"
    num_rows, ndim = dataset.shape[0], dataset.ndim - 1
    try:
        dtype = dataset.dtype
    except TypeError as error:  # NumPy lacks the type, such as 24 bits
        return ForeignColumn(kind=kind, dtype=f"'{error}'", ndim=ndim, num_rows=num_rows)
    inner = h5py.check_vlen_dtype(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        kind = "text" if ndim == 0 else "unknown"
    elif inner is not None:
        dtype = np.dtype(inner)
        if ndim == 0 and is_of_numbers(dtype) and dtype.byteorder != ">":  # h5py misreads these
            kind = "bytes" if dtype == np.uint8 else "array"
        ndim = 1
    elif is_of_numbers(dtype) and (ndim or dtype.kind != "c"):
        kind = "array" if ndim else "value"
    name = dtype.name if kind != "unknown" else str(dtype) + " of varying length" * bool(inner)
    return ForeignColumn(kind=kind, dtype=name, ndim=ndim, num_rows=num_rows)


def _row_bytes(dataset: h5py.Dataset) -> int:
    """Return the uncompressed bytes of a row; of text and the like, at most those of the file."""
    stored: int = dataset.file.id.get_filesize() if dataset.dtype.hasobject else dataset.nbytes
    return max(stored // max(len(dataset), 1), 1)


def _read_bytes(dataset: h5py.Dataset, rows: NDArray[np.int64]) -> int:
    """Return the bytes of whole chunks that hold the rows from the first to the last."""
    of_chunk = dataset.chunks[0] if dataset.chunks else 1
    return int(rows[-1] // of_chunk + 1 - rows[0] // of_chunk) * of_chunk * _row_bytes(dataset)


def _reach(dataset: h5py.Dataset) -> tuple[int, int]:
    """Return how many more rows one read may include, and the most rows of a read."""
    row_bytes = _row_bytes(dataset)
    span = max(_RUN_BYTES // row_bytes, 1)
    if dataset.chunks is None:
        return max(min(_GAP_BYTES // row_bytes, _GAP_ROWS), 1), span
    of_chunk = dataset.chunks[0]
    return of_chunk, max(span // of_chunk, 1) * of_chunk


def _runs(dataset: h5py.Dataset, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return ascending rows, by groups that are read at once."""
    gap, span = _reach(dataset)
    apart = (np.diff(rows) > gap) | (np.diff(rows // span) > 0)
    return np.split(rows, np.flatnonzero(apart) + 1) if len(rows) else []


def _cell(value: Any) -> Cell:
    if isinstance(value, np.ndarray):
        order = value.dtype.newbyteorder("<")
        array: NDArray[Any] = np.ascontiguousarray(value, dtype=order).reshape(value.shape)
        return array
    cell: Cell = value.item() if isinstance(value, np.generic) else value
    return cell
