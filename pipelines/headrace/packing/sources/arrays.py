"""Arrays whose first axis is the samples: of HDF5 and `.npz` files, and of a Zarr group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError, UnreadableError
from headrace.fields.array import decode_arrays, is_of_numbers
from headrace.fields.field_kind import kind_named, kind_of_bytes
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.reading import limited
from headrace.packing.samples import Fields, SourceField, Unreadable
from headrace.packing.sources.arrow_columns import coded
from headrace.packing.sources.files import damaged, is_zarr, package
from headrace.packing.sources.listing import Asked
from headrace.packing.sources.row_container import Cell, ColumnOfRows, RowContainer
from headrace.packing.sources.rows import RowSource
from headrace.packing.sources.source_store import refuse_link
from headrace.shards.foreign import ForeignColumn, ForeignFile


class Arrays:
    """Arrays of NumPy or Zarr, read as the datasets of an HDF5 file are."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: each for name, each in arrays.items() if each.ndim}
        alone = arrays.keys() - self._arrays.keys()
        self.not_fields = dict.fromkeys(sorted(alone), "one value, not one per row")

    def columns(self) -> Mapping[str, ForeignColumn]:
        return {name: _column(each) for name, each in self._arrays.items()}

    def num_bytes(self, path: str) -> int:
        return int(self._arrays[path].nbytes)

    def rows(self, path: str, rows: Sequence[int]) -> list[Any]:
        return [str(cell) for cell in self._read(path, np.asarray(rows, np.int64))]

    def numbers(self, path: str, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        dtype = self._arrays[path].dtype
        if not is_of_numbers(dtype):
            return None
        return self._read(path, rows).astype(dtype.newbyteorder("="), copy=False)

    def _read(self, path: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        array = self._arrays[path]
        found: NDArray[Any] = getattr(array, "oindex", array)[rows]
        return found


def _column(array: Any) -> ForeignColumn:
    dtype, ndim = np.dtype(array.dtype), array.ndim - 1
    kind: Literal["value", "array", "text", "unknown"] = "unknown"
    if is_of_numbers(dtype) and (ndim or dtype.kind != "c"):
        kind = "array" if ndim else "value"
    elif dtype.kind in "UT" and not ndim:
        kind = "text"
    return ForeignColumn(kind=kind, dtype=dtype.name, ndim=ndim, num_rows=array.shape[0])


class ArrayRows(RowContainer):
    """Rows of arrays; of those that the recipe names, or of all if it names none."""

    def __init__(self, file: ForeignFile | Arrays, name: str, asked: Asked) -> None:
        self._file = file
        self._name = name
        self._named = [] if asked.every else asked.named

    @property
    def parts(self) -> Mapping[int, int]:
        wanted = [name for name in self._named if name in self._columns] or list(self._columns)
        sizes = {name: self._columns[name].num_rows for name in wanted}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {size:,}" for name, size in sorted(sizes.items()))
            raise DataError(
                f"The datasets of {self._name} have different numbers of rows: {listed}",
                "Name those that count in dataset.fields.",
            )
        return {0: next(iter(sizes.values()))} if sizes else {}

    @property
    def not_fields(self) -> Mapping[str, str]:
        return self._file.not_fields

    @property
    def types(self) -> Mapping[str, str]:
        return {
            name: f"{column.kind} of {column.dtype} with {column.ndim} axes a sample"
            for name, column in self._columns.items()
        }

    def num_bytes(self, columns: Iterable[str]) -> int:
        return sum(self._file.num_bytes(column) for column in columns)

    def field(self, name: str, column: str) -> SourceField:
        found = self._columns[column]
        if found.kind == "unknown":
            raise RecipeError(
                f"Dataset '{column}' of {self._name} is of type {found.dtype}, which cannot be "
                "packed",
                "Name the datasets that count in dataset.fields.",
            )
        if found.kind == "bytes":
            first = _as_bytes(self._file.rows(column, [0])[0]) if found.num_rows else b""
            return SourceField(name, kind_of_bytes(first).name)
        return SourceField(name, found.kind, dtype=found.dtype if found.kind == "value" else "")

    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        return {column: self._coded(column) for column in columns}

    def columns(self, fields: Fields, part: int, rows: NDArray[np.int64]) -> Iterator[ColumnOfRows]:
        for field in fields:
            is_number = field.kind in ("value", "array")
            found = self._file.numbers(field.column, rows) if is_number else None
            if found is not None:
                yield ColumnOfRows(found)
                continue
            cells: list[Any] = self._file.rows(field.column, rows.tolist())
            if field.kind == "text":
                cells = list(map(_as_text, cells))
            elif bytes in kind_named(field.kind).types:
                cells = [_as_bytes(cell) or Unreadable("", "it is empty") for cell in cells]
            yield ColumnOfRows.of(cells)

    def _coded(self, column: str) -> Any:
        rows = np.arange(self._columns[column].num_rows)
        cells: Any = self._file.numbers(column, rows)
        if cells is None or cells.ndim != 1 or cells.dtype.kind == "c":
            found = list(map(_as_text, self._file.rows(column, range(len(rows)))))
            for row, cell in enumerate(found):
                if isinstance(cell, Unreadable):
                    raise damaged(self._name, "HDF5", f"row {row} of '{column}': {cell.reason}")
            cells = [cell if isinstance(cell, str) else np.asarray(cell).tolist() for cell in found]
        return coded(pa.array(cells))

    @cached_property
    def _columns(self) -> Mapping[str, ForeignColumn]:
        return self._file.columns()


def _as_text(cell: Any) -> Cell:
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError as error:
        return Unreadable("", f"not UTF-8: {error}")


def _as_bytes(cell: object) -> bytes:
    return cell.tobytes() if isinstance(cell, np.ndarray) else b""


class Hdf5Source(RowSource):
    """Rows of the datasets of HDF5 files."""

    form = "hdf5"
    what = "HDF5"

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        name, folder = f"{self._place.name}/{path}", self._place.folder
        file = ForeignFile(folder / path if folder else stream, name, limited)
        return ArrayRows(closing.enter_context(file), name, self.asked)


class NpzSource(RowSource):
    """Rows of the arrays of `.npz` files."""

    form = "npz"
    stays_open = True

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        name = f"{self._place.name}/{path}"
        try:
            arrays = decode_arrays(stream.read())
        except UnreadableError as error:
            raise ValueError(str(error)) from error
        return ArrayRows(Arrays(arrays), name, self.asked)


class ZarrSource(RowSource):
    """Rows of the arrays of a Zarr group, and of the groups in it."""

    form = "zarr"
    stays_open = True

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        folder = self._place.folder
        if folder is None or not is_zarr(folder):
            raise RecipeError(
                f"{self._place.name} is not a Zarr group in a folder of this machine",
                "Set dataset.source to the folder of a group, or copy it there.",
            )
        num_bytes, state = 0, xxhash.xxh3_128()
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_symlink():
                refuse_link(folder, name)
            if path.is_file():
                found = path.stat()
                num_bytes += found.st_size
                state.update(f"{name!r} {found.st_size} {found.st_mtime_ns}\n".encode())
        return [StoredFile("zarr", num_bytes, state.hexdigest())]

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[RowContainer]:
        if self.containers()[0].version != version:
            raise DataError(
                f"{self._place.name} was written to since the source folder was listed",
                "Pack again when nothing writes to the source folder any more.",
            )
        with self._naming(path):
            zarr = package("zarr", self._place.name)
            arrays = dict(_arrays_in(zarr.open_group(str(self._place.folder), mode="r")))
            self.notes = tuple(_gaps(arrays))
            yield ArrayRows(Arrays(arrays), self._place.name, self.asked)


def _arrays_in(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a group, those of groups in it as `group/name`."""
    for name, array in group.arrays():
        yield f"{prefix}{name}", array
    for name, inner in group.groups():
        yield from _arrays_in(inner, f"{prefix}{name}/")


def _gaps(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on arrays that lack stored chunks."""
    for name, array in arrays.items():
        lacking = array.nchunks - array.nchunks_initialized
        if lacking:
            yield f"{name}: {lacking:,} chunks are not stored, and read as {array.fill_value}"
