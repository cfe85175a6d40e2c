"""Sources of rows: one row of a container is one sample. Formats are in modules of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import DataError
from headrace.files.manifest import ColumnNote
from headrace.informing import inform
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.column_notes import LOOKED_AT, notes_on
from headrace.packing.sample_table import SampleTable, stop_within, strings
from headrace.packing.samples import (
    READ_BYTES,
    Opening,
    Source,
    SourceField,
    Unreadable,
    Values,
    bytes_of,
)
from headrace.packing.sources.cells import Tally, add_texts
from headrace.packing.sources.files import (
    chosen,
    containers,
    damaged,
    no_second_label,
    refuse_paths,
)
from headrace.packing.sources.listing import (
    Asked,
    Chosen,
    check_container,
    choose,
    listed_rows,
    windows,
)
from headrace.packing.sources.row_container import GONE, ColumnOfRows, NoTableError, RowContainer
from headrace.recipe.dataset import DatasetSpec

_FIRST_ROWS = 256
_MOST_ROWS = 2**15


class RowSource(Source):
    """Rows of the containers below a place."""

    form: str
    sequential = True
    what: ClassVar[str] = ""
    """The form as people call it, if they do not call it so."""
    stays_open: ClassVar[bool] = False
    """Whether a container stays open for the rows behind those that were read."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self.asked = Asked.of(self._spec)
        self.chosen = Chosen(fields=self.fields, missing=self._spec.missing)
        self.left_out: Mapping[int, str] = {}
        """Why rows of the container that was listed last are no samples, by their number."""
        self.quarantined: list[Unreadable] = []
        self._open: tuple[str, str, RowContainer] | None = None
        self._closing = ExitStack()

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        refuse_paths(spec, cls.form, "column that holds the label")
        Asked.of(spec)

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        """Return an opened container; `closing` takes what must be closed after it."""
        raise NotImplementedError  # of sources that open no files: they have an `open_rows`

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[RowContainer]:
        with self._place.open(path, version) as stream, self._naming(path), ExitStack() as closing:
            yield self.container(path, stream, closing)

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the file that cannot be read, in a DataError."""
        name, what = f"{self._place.name}/{path}", self.what or self.form
        try:
            yield
        except NoTableError as error:
            raise DataError(
                f"{name} cannot be read as a {what} file: {error}", error.hint
            ) from error
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise damaged(name, what, error) from error

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        return containers(self._place, self.form, check, chosen(self._spec))

    def split_of(self, path: str) -> str | None:
        """Return the split of a container by its place; None if that does not say it."""
        return None

    def list_samples(self, check: Check | None = None) -> SampleTable:
        found: dict[str, Any] = {}
        types: Mapping[str, str] = {}
        files = self.containers(check)
        other = files[-1].path if len(files) > 1 else ""
        for file in files:
            name = f"{self._place.name}/{file.path}"
            with self.open_rows(file.path, file.version) as rows:
                if not types:
                    self.chosen, types = choose(self.asked, rows, name, other), rows.types
                    self.fields, self.classes = self.chosen.fields, self.chosen.classes
                check_container(file, name, rows, self.chosen, types)
                if any(rows.parts.values()):
                    found[f"{file.path}#"] = self._rows_of(file, name, rows)
                    self.notes = self.notes or tuple(self._informed(file, rows.parts))
            if check is not None:
                check()
        tables = [found[path] for path in sorted(found)]
        if not any(table.num_rows for table in tables):
            what = f"The {self.form} files in {self._place.name} hold no row"
            first = next(iter(self.quarantined), None)
            raise DataError(f"{what} that can be read: {first.reason}" if first else what)
        listed = SampleTable.concatenated(tables)
        no_second_label([each.name for each in self.fields], listed.has("label"))
        return listed

    def read(self, refs: SampleTable) -> Iterator[Values | Unreadable]:
        """Yield values of samples, in order; about `READ_BYTES` of them are in memory at once.

        Samples of a shard come in random order, so each reading goes over all parts that it lies
        in: as many rows as fit are read at once.
        """
        for start, stop, columns in self.read_columns(refs, by_size=True):
            yield from samples_of(refs[start:stop].iter_paths(), columns)
            del columns  # before the next are read

    def read_columns(
        self, refs: SampleTable, *, by_size: bool = False
    ) -> Iterator[tuple[int, int, Mapping[str, ColumnOfRows]]]:
        """Yield the first sample, the one behind the last, and values by field, in order.

        With `by_size`, values may be larger than listed: the first rows say how large.

        Raises:
            DataError: A source changed or vanished since it was listed.
            StoreError: The storage failed.
        """
        most, row_bytes = _FIRST_ROWS, 0
        try:
            for start, end in windows(refs):
                while start < end:
                    stop = min(start + most, end) if by_size else end
                    if by_size:
                        sizes = refs[start:stop].numbers("bytes")
                        ends = np.cumsum(np.maximum(sizes, row_bytes))
                        stop = start + stop_within(ends, 0, READ_BYTES)
                    columns = self._in_columns(refs[start:stop])
                    if by_size:
                        row_bytes = sum(map(_num_bytes, columns.values())) // (stop - start)
                    if stop == len(refs):
                        self._close()  # so that less is in memory while these are written
                    yield start, stop, columns
                    del columns
                    start, most = stop, _MOST_ROWS
        finally:
            self._close()

    def _in_columns(self, refs: SampleTable) -> dict[str, ColumnOfRows]:
        found: dict[str, ColumnOfRows] = {}
        files: dict[int, tuple[str, str]] = {}
        places = refs.column("path").indices, *refs.places
        of, parts, numbers = (np.asarray(each, np.int64) for each in places)
        order = np.lexsort((numbers, parts, of))
        changes = (np.diff(of[order]) != 0) | (np.diff(parts[order]) != 0)
        for at in np.split(order, np.flatnonzero(changes) + 1):
            if (number := int(of[at[0]])) not in files:
                ref = refs[int(at[0])]
                files[number] = ref.path.rpartition("#")[0], ref.version
            path, version = files[number]
            with self._naming(path):
                rows = self._opened(path, version)
                for piece, columns in rows.pieces(self.fields, int(parts[at[0]]), numbers[at]):
                    for field, column in zip(self.fields, columns, strict=True):
                        filled = self.filled(field.name, column)
                        found[field.name] = _put(
                            found.get(field.name), filled, at[piece], len(refs)
                        )
        if not self.stays_open:
            self._close()
        return found

    def _opened(self, path: str, version: str) -> RowContainer:
        """Return a container, which stays open until another one is opened."""
        if self._open is None or self._open[:2] != (path, version):
            self._close()
            rows = self._closing.enter_context(self.open_rows(path, version))
            self._open = path, version, rows
        return self._open[2]

    def _close(self) -> None:
        self._open = None
        self._closing.close()

    def filled(self, name: str, column: ColumnOfRows) -> ColumnOfRows:
        """Return a column of a field with what stands for missing values."""
        fill = self.chosen.fills.get(name)
        gone = [row for row, why in column.wrong.items() if why == GONE and fill is not None]
        if not gone:
            return column
        values: Any = column.values.copy()
        for row in gone:
            values[row] = fill
        wrong = {row: why for row, why in column.wrong.items() if why != GONE}
        return ColumnOfRows(values, wrong)

    def _rows_of(self, file: StoredFile, name: str, rows: RowContainer) -> Any:
        split = self.split_of(file.path)
        table, self.left_out = listed_rows(file, name, rows, self.chosen, split)
        width = len(str(sum(rows.parts.values()) - 1))
        self.quarantined += [
            Unreadable(f"{file.path}#{row:0{width}}", why) for row, why in self.left_out.items()
        ]
        return table

    def _informed(self, file: StoredFile, parts: Mapping[int, int]) -> list[ColumnNote]:
        """Return what people should know of the columns; nothing if the rows cannot be read."""
        work = partial(self._notes_on, file, *next(iter(parts.items())))
        return inform(None, "notes on columns", lambda: [*work()], list, None) or []

    def _notes_on(self, file: StoredFile, part: int, num_rows: int) -> Iterator[ColumnNote]:
        """Yield notes on the fields, by the first rows of a part; its container is opened anew."""
        looked = tuple(each for each in self.fields if each.kind in ("text", "value"))
        found: dict[str, list[Any]] = {each.name: [] for each in looked}
        with self.open_rows(file.path, file.version) as rows:
            for _, columns in rows.pieces(looked, part, np.arange(min(num_rows, LOOKED_AT))):
                for field, column in zip(looked, columns, strict=True):
                    there = [row for row in range(len(column.values)) if row not in column.wrong]
                    found[field.name] += map(column.value, there)
        for field in self.fields:
            values = found.get(field.name, [])
            yield from self.type_notes(field, values)
            yield from notes_on(field.name, values, self._place.folder)

    def type_notes(self, field: SourceField, values: Sequence[Any]) -> list[ColumnNote]:
        """Return how the type of a field was chosen; `values` are its first ones."""
        found = [ColumnNote(column=field.name, kind="type", detail=field.type)]
        texts = [value for value in values if isinstance(value, str)]
        if texts and not field.encoding:
            tally = Tally(written=True)
            add_texts({"": tally}, {"": strings(texts)})
            found += [note for note in tally.notes(field.name) if note.kind != "type"]
        return found


def samples_of(
    paths: Iterable[str], columns: Mapping[str, ColumnOfRows]
) -> Iterator[Values | Unreadable]:
    """Yield the samples of columns, by row."""
    for row, path in enumerate(paths):
        wrong = (
            f"{name}: {each.wrong[row]}" for name, each in columns.items() if row in each.wrong
        )
        why = next(wrong, None)
        if why is None:
            yield {name: each.value(row) for name, each in columns.items()}
        else:
            yield Unreadable(path, why)


def _put(
    whole: ColumnOfRows | None, column: ColumnOfRows, at: NDArray[np.int64], num_rows: int
) -> ColumnOfRows:
    """Put a column of some rows to their places among all; numbers of one shape stay an array."""
    values: Any = column.values
    is_array = isinstance(values, np.ndarray)
    if whole is None:
        empty: Any = np.zeros((num_rows, *values.shape[1:]), values.dtype) if is_array else []
        whole = ColumnOfRows(empty if is_array else [None] * num_rows, {})
    before = whole.values
    alike = (
        is_array and isinstance(before, np.ndarray)
        and (before.shape[1:], before.dtype) == (values.shape[1:], values.dtype)
    )  # fmt: skip
    if alike:
        before[at] = values
    else:
        before = before if isinstance(before, list) else [before[row] for row in range(num_rows)]
        for row, place in enumerate(at.tolist()):
            before[place] = column.value(row)
    wrong = {int(at[row]): why for row, why in column.wrong.items()}
    return ColumnOfRows(before, {**whole.wrong, **wrong} if wrong else whole.wrong)


def _num_bytes(column: ColumnOfRows) -> int:
    if isinstance(column.values, np.ndarray):
        return int(column.values.nbytes)
    return sum(map(bytes_of, column.values))
