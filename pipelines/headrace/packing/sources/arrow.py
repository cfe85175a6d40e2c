"""Parquet files, and folders that `save_to_disk` of the library Hugging Face `datasets` wrote."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError, UnreadableError
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sample_table import files_of, give_back_small_blocks
from headrace.packing.samples import Fields, SourceField
from headrace.packing.sources.arrow_columns import (
    as_plain,
    coded,
    column_of,
    field_of_type,
    has_content,
)
from headrace.packing.sources.files import chosen, damaged, matching
from headrace.packing.sources.row_container import ColumnOfRows, RowContainer
from headrace.packing.sources.rows import RowSource
from headrace.shards.format import most_bytes

_PIECE_BYTES = 2**20
_BUFFER_BYTES = 2**20  # of each column
_MOST_PIECE_ROWS = 2**16
_LOOKED_AT = 1024  # cells whose bytes may show what a column holds
_STATE = "state.json"
_DICT = "dataset_dict.json"

_INDEX = re.compile(r"__index_level_\d+__")


class ParquetSource(RowSource):
    """Rows of Parquet files; row groups are read piece by piece."""

    form = "parquet"
    stays_open = True

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        rows = ParquetRows(stream)
        closing.callback(rows.close)
        return rows


class HuggingFaceSource(RowSource):
    """Rows of the Arrow files of a dataset, or of the datasets of a `DatasetDict` (its splits)."""

    form = "huggingface"
    what = "Hugging Face"
    _is_dict = False

    @property
    def sequential(self) -> bool:  # type: ignore[override]
        """Whether files are not mapped: then a record batch is read whole."""
        return self._place.folder is None

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        """The Arrow files that the states name; others are caches."""
        states = self._place.listed(lambda path: PurePosixPath(path).name == _STATE, check)
        self._is_dict = self._place.stat(_DICT) is not None
        found = [file for state in files_of(states) for file in self._files_of(state)]
        if not found:
            raise RecipeError(
                f"No {_STATE} below {self._place.name} names a file",
                "Set dataset.source to a folder that save_to_disk wrote.",
            )
        return sorted(matching(found, self._place.name, chosen(self._spec)))

    def split_of(self, path: str) -> str | None:
        """The folder of a `DatasetDict` that a file lies in."""
        return path.partition("/")[0] if self._is_dict else None

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        folder = self._place.folder
        file = pa.memory_map(str(folder / path)) if folder else pa.PythonFile(stream, mode="r")
        return _ArrowRows(file, lambda: self.chosen.roles.values())

    def _files_of(self, state: StoredFile) -> Iterator[StoredFile]:
        folder = PurePosixPath(state.path).parent
        (content,) = self._place.read([state])
        name = f"{self._place.name}/{state.path}"
        try:
            if isinstance(content, UnreadableError):
                raise DataError(f"{name} cannot be read: {content.what}")
            named = [str(entry["filename"]) for entry in json.loads(content)["_data_files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(name, "state of a Hugging Face dataset", repr(error)) from error
        for each in named:
            is_beside = PurePosixPath(each).name == each
            file = self._place.stat(str(folder / each)) if is_beside else None
            if file is None:
                raise DataError(f"{name} names '{each}', which is not a file beside it")
            yield file


class _ArrowTable(RowContainer):
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        name, times = max(Counter(schema.names).items(), key=lambda each: each[1], default=("", 0))
        if times > 1:
            raise ValueError(f"it has two columns '{name}'")

    @property
    def not_fields(self) -> Mapping[str, str]:
        """The index that pandas writes by default."""
        found = [name for name in self._schema.names if _INDEX.fullmatch(name)]
        with suppress(LookupError, TypeError, ValueError):  # what pandas says of it only informs
            index = json.loads(self._schema.metadata[b"pandas"])["index_columns"]
            found += [name for name in self._schema.names if name in index]
        return dict.fromkeys(found, "the index of pandas")

    @property
    def types(self) -> Mapping[str, str]:
        return {field.name: str(field.type) for field in self._schema}

    def field(self, name: str, column: str) -> SourceField:
        kind, marks = self._schema.field(column).type, self._schema.field(column).metadata or {}
        if b"json" in marks:
            return SourceField(name, "text", encoding="json")
        found = field_of_type(name, column, kind, lambda: self._first(column))
        return replace(found, mixed="ragged") if b"ragged" in marks else found

    def class_names(self, column: str) -> Sequence[str]:
        return _class_names(self._schema.metadata).get(column, [])

    @abstractmethod
    def _first(self, column: str) -> object: ...


class ParquetRows(_ArrowTable):
    """Rows of row groups; of these no more than a piece is in memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._file = _parquet(stream, buffer_bytes=0)
        self._key: tuple[object, ...] = ()  # row group and columns of the batches
        self._batches: Any = None
        self._batch: Any = None
        self._start = 0  # row at which the batch begins
        super().__init__(self._file.schema_arrow)

    def pieces(
        self, fields: Fields, part: int, rows: NDArray[np.int64]
    ) -> Iterator[tuple[slice, Iterable[ColumnOfRows]]]:
        """As of every container; a row group is gone over once if rows behind these come next."""
        names = [each.column for each in fields]
        if self._key != (part, *names) or rows[0] < self._start:
            self._begin(part, names)
        start = 0
        with _placed(f"row group {part}, columns {', '.join(names)}: "):
            while start < len(rows):
                end = self._start + (self._batch.num_rows if self._batch is not None else 0)
                stop = int(np.searchsorted(rows, end))
                if stop > start:
                    piece = self._batch.take(pa.array(rows[start:stop] - self._start))
                    pairs = zip(fields, map(piece.column, names), strict=True)
                    yield slice(start, stop), [column_of(*pair) for pair in pairs]
                    start = stop
                elif (more := next(self._batches, None)) is None:
                    raise ValueError("it holds fewer rows than it claims")
                else:
                    self._batch, self._start = more, end

    def _begin(self, part: int, names: Sequence[str]) -> None:
        self.close()
        file = _parquet(self._stream, _BUFFER_BYTES)
        group = file.metadata.row_group(part)
        row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
        self._batches = file.iter_batches(
            max(min(_PIECE_BYTES // row_bytes, _MOST_PIECE_ROWS), 1),
            row_groups=[part],
            columns=list(dict.fromkeys(names)),
            use_threads=False,
        )
        self._key, self._start = (part, *names), 0

    def close(self) -> None:
        """Give the memory that is in use, or that Arrow keeps for another, back to the system."""
        if self._batches is not None:
            self._batches.close()
            self._batches = self._batch = None
            give_back_small_blocks()

    def texts(self, column: str) -> Any:
        """A column of paths as an Arrow array of texts."""
        found = as_plain(self._file.read(columns=[column]).column(column))
        return found.cast(pa.string()).combine_chunks()

    def as_written(self, columns: Sequence[str]) -> Iterator[Sequence[object]]:
        """Cells of each row as Python objects."""
        for batch in self._file.iter_batches(columns=list(columns)):
            cells = (as_plain(batch.column(name)).to_pylist() for name in columns)
            yield from zip(*cells, strict=True)

    @property
    def parts(self) -> Mapping[int, int]:
        meta = self._file.metadata
        return {index: meta.row_group(index).num_rows for index in range(meta.num_row_groups)}

    def num_bytes(self, columns: Iterable[str]) -> int:
        return sum(self._group_bytes(part, column) for column in columns for part in self.parts)

    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        table = self._file.read(columns=list(columns))
        return {column: coded(table.column(column)) for column in table.column_names}

    def _group_bytes(self, part: int, column: str) -> int:
        """Bytes of a column of a row group, not compressed."""
        group = self._file.metadata.row_group(part)
        chunks = (group.column(number) for number in range(group.num_columns))
        mine = (each for each in chunks if f"{each.path_in_schema}.".startswith(f"{column}."))
        return sum(each.total_uncompressed_size for each in mine)

    def _first(self, column: str) -> object:
        batches = self._file.iter_batches(batch_size=1, columns=[column])
        cells = (batch.column(column)[0].as_py() for batch in islice(batches, _LOOKED_AT))
        return next(filter(has_content, cells), None)


def _parquet(stream: BinaryIO, buffer_bytes: int) -> Any:
    """Return a file whose columns are read with buffers of some bytes; 0: whole."""
    from pyarrow import parquet

    return parquet.ParquetFile(stream, buffer_size=buffer_bytes, page_checksum_verification=True)


class _ArrowRows(_ArrowTable):
    """Rows of a stream of record batches; a part is a batch, its number the byte it begins at."""

    def __init__(self, file: Any, role_columns: Callable[[], Iterable[str]]) -> None:
        super().__init__(pa.ipc.open_stream(file).schema)
        self._file = file
        self._role_columns = role_columns

    @property
    def parts(self) -> Mapping[int, int]:
        return self._listed[0]

    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        found = self._listed[1]
        return {column: pa.chunked_array(found[column]).combine_chunks() for column in columns}

    def columns(self, fields: Fields, part: int, rows: NDArray[np.int64]) -> Iterator[ColumnOfRows]:
        with _placed(f"record batch at byte {part:,}: "):
            batch = self._batch(part)
        for field in fields:
            with _placed(f"record batch at byte {part:,}, column {field.column}: "):
                yield column_of(field, _whole(batch.column(field.column)).take(rows))

    @cached_property
    def _listed(self) -> tuple[dict[int, int], dict[str, list[Any]]]:
        """Rows by batch, and the cells of label, group and split, from one pass over the file."""
        parts: dict[int, int] = {}
        cells: dict[str, list[Any]] = {column: [] for column in self._role_columns()}
        for start, batch in self._batches():
            parts[start] = batch.num_rows
            batch.validate()
            if batch.num_rows <= most_bytes(self._file.size()):  # more is a claim, and refused
                for column, found in cells.items():
                    found.append(coded(batch.column(column)))
        return parts, cells

    def _batches(self) -> Iterator[tuple[int, Any]]:
        self._file.seek(0)
        reader = pa.ipc.open_stream(self._file)
        start = self._file.tell()
        for batch in reader:
            yield start, batch
            start = self._file.tell()

    def _batch(self, part: int) -> Any:
        if "dictionary<" in str(self._schema.types):  # also inside of lists
            return next(batch for start, batch in self._batches() if start == part)
        self._file.seek(part)
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._file), self._schema)

    def _first(self, column: str) -> object:
        columns = (_whole(batch.column(column)) for _, batch in self._batches())
        cells = (cell.as_py() for each in columns for cell in each)
        return next(filter(has_content, islice(cells, _LOOKED_AT)), None)


def _whole(column: Any) -> Any:
    """Return a column whose offsets, lengths and codes lead nowhere else; Arrow may crash else.

    Texts that are not UTF-8 are left to their rows.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
    return column


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Name the place in a file at which Arrow fails, in a ValueError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{place}{error}") from error


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Class names by column, from the features that Hugging Face writes beside a schema."""
    found = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    try:
        features = found.get("info", {}).get("features", {}).items()
        return {
            column: list(map(str, each.get("names") or ()))
            for column, each in features
            if isinstance(each, dict) and each.get("_type") == "ClassLabel"
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"its features of Hugging Face are unreadable: {error}") from error
