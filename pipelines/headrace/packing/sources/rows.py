"""Sources of rows: one row of a container is one sample. Formats are in modules of their own."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import accumulate, groupby, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError, nearest
from headrace.fields.field_kind import Value
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sample_table import SampleRef, SampleTable, repeated
from headrace.packing.samples import READ_BYTES, Access, Fields, SourceField, Unreadable, Values
from headrace.packing.sources.files import (
    check_field_name,
    chosen,
    containers,
    no_second_label,
    refuse_paths,
    rows_as_samples,
)
from headrace.packing.sources.listed_rows import table_of_rows, windows
from headrace.packing.sources.row_container import (
    GONE,
    NO_NAME,
    Cell,
    ColumnOfRows,
    RowContainer,
    RowsOfPart,
    Types,
    field_of_index,
    fill_of,
    is_gone,
    role_names,
)
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.format import most_bytes

logger = logging.getLogger(__name__)

_LABEL = "label"
_FIRST_ROWS = 256
_MOST_ROWS = 2**15


class RowSource(ABC):
    """Rows of the containers below a place."""

    form: str
    suffixes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sequential = True
    is_index = False
    """Whether the rows tell of files; see `take_as_index`."""

    def __init__(
        self, spec: DatasetSpec, place: SourceStore, fields: Fields, access: Access
    ) -> None:
        refuse_paths(spec, self.form, "column that holds the label")
        self.fields = fields
        self.classes: tuple[str, ...] = ()
        self._place = place
        self._include = chosen(spec)
        self._columns = dict(spec.fields)
        self._every = not spec.fields
        self._labels = spec.labels
        self._label = spec.label_field if spec.labels != "none" else None
        self._as_value = spec.label_kind == "value"
        self._roles = {"group": spec.group_field, "split": spec.split_field}
        self._defaults: dict[str, str] = {}  # columns of roles that count where they are there
        self._missing = dict(spec.missing)
        self.left_out: Mapping[int, str] = {}
        """Why rows of the container that was listed last are no samples, by their number."""
        self.quarantined: list[Unreadable] = []
        if self._as_value and spec.labels != "none":
            if spec.label_field is None:
                raise RecipeError(
                    "dataset.label_kind is 'value', but dataset.label_field names no column",
                    "Name the column that holds the numbers to predict.",
                )
            self._columns[_LABEL] = spec.label_field

    @abstractmethod
    def open_rows(self, path: str, version: str) -> AbstractContextManager[RowContainer]: ...

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        return containers(self._place, self.form, self.suffixes, check, self._include)

    def take_as_index(self, *, every: bool) -> None:
        """Read the rows as those of an index: `label`, `group` and `split` have their meaning.

        Args:
            every: Whether all other columns are fields.
        """
        self.is_index, self._every = True, every
        defaults = {"label": _LABEL, "group": "group", "split": "split"}
        if self._as_value or self._labels == "none":
            del defaults["label"]
        self._defaults = {
            role: column for role, column in defaults.items() if role not in self.role_columns()
        }

    @property
    def told(self) -> list[str]:
        """Columns that the recipe names as fields, label, group and split; empty for all."""
        return [] if self._every else self._named

    @property
    def columns(self) -> Mapping[str, str]:
        """Column of each field; known after the listing."""
        return self._columns

    @property
    def _named(self) -> list[str]:
        """Columns of fields, label, group and split."""
        roles = (self._label, *self._roles.values())
        return [*self._columns.values(), *filter(None, roles)]

    def split_of(self, path: str) -> str | None:
        """Split that the place of a container tells."""
        return None

    def list_samples(self, check: Check | None = None) -> SampleTable:
        found: dict[str, Any] = {}
        types: Types = {}
        for number, file in enumerate(self.containers(check)):
            with self.open_rows(file.path, file.version) as rows:
                if number == 0:
                    self._start(file, rows)
                    types = rows.types
                self._check_same(file, rows.types, types)
                self._check_claim(file, rows)
                if any(rows.parts.values()):
                    found[f"{file.path}#"] = self._rows_of(file, rows)
            if check is not None:
                check()
        tables = [found[path] for path in sorted(found)]
        if not any(table.num_rows for table in tables):
            what = f"The {self.form} files in {self._place.name} hold no row"
            first = next(iter(self.quarantined), None)
            raise DataError(f"{what} that can be read: {first.reason}" if first else what)
        listed = SampleTable.concatenated(tables)
        no_second_label(self.fields, listed)
        return listed

    def read_columns(
        self, refs: SampleTable
    ) -> Iterator[tuple[int, int, Mapping[str, ColumnOfRows] | None]]:
        """Values of samples by field, in order, some after the other.

        Yields:
            The first sample, the one behind the last, and their values; None in place of these
            where they must be read one by one.

        Raises:
            DataError: A source changed or vanished since it was listed.
            StoreError: The storage failed.
        """
        try:
            for start, stop in windows(refs):
                columns = self._in_columns(refs[start:stop])
                if stop == len(refs):
                    self._end_columns()  # so that less is in memory while these are written
                yield start, stop, columns
        finally:
            self._end_columns()

    def _in_columns(self, refs: SampleTable) -> Mapping[str, ColumnOfRows] | None:
        of = refs.column("path").indices.to_numpy()
        parts, rows = (column.to_numpy().astype(np.int64) for column in refs.places)
        order = np.lexsort((rows, parts, of))
        changes = (np.diff(of[order]) != 0) | (np.diff(parts[order]) != 0)
        found: dict[str, ColumnOfRows] = {}
        groups = np.split(order, np.flatnonzero(changes) + 1)
        for _, same_file in groupby(groups, key=lambda group: int(of[group[0]])):
            mine = list(same_file)
            wanted = [(int(parts[at[0]]), rows[at], at) for at in mine]
            for at, columns in self.columns_of(*_file_of(refs[int(mine[0][0])]), wanted):
                filled = map(self._filled_column, self.fields, columns)
                if not _put(found, self.fields, filled, at, len(refs)):
                    return None
        return found

    def _end_columns(self) -> None:  # noqa: B027  most leave nothing open
        """Close what was left open for the next columns."""

    def columns_of(
        self, path: str, version: str, wanted: Sequence[RowsOfPart]
    ) -> Iterator[tuple[NDArray[np.int64], Iterable[ColumnOfRows | None]]]:
        """Columns of rows of a container, as of `RowContainer`, some after the other.

        Yields:
            Where rows stand among all that are read, and their columns.
        """
        with self.open_rows(path, version) as container:
            types = container.types
            names = [self._column(field.name, types) for field in self.fields]
            for part, rows, at in wanted:
                yield at, container.columns(names, part, rows)

    def read(self, refs: Sequence[SampleRef]) -> Iterator[Values | Unreadable]:
        """Values of samples, in order; about `READ_BYTES` of them are in memory at once.

        Samples of a shard come in random order, so each reading goes over all parts that it lies
        in: as many rows as fit are read at once.
        """
        start, most, row_bytes = 0, _FIRST_ROWS, 0
        while start < len(refs):
            some = list(refs[start : start + most])
            ends = accumulate(max(ref.num_bytes, row_bytes) for ref in some)
            stop = start + max(1, sum(1 for _ in takewhile(READ_BYTES.__ge__, ends)))
            values = self._read(some[: stop - start])
            row_bytes = sum(map(_num_bytes, values)) // len(values)
            yield from values
            del values  # before the next are read
            start, most = stop, _MOST_ROWS

    def _read(self, refs: Sequence[SampleRef]) -> list[Values | Unreadable]:
        wanted: dict[tuple[str, str], dict[int, list[int]]] = {}
        for index, ref in enumerate(refs):
            wanted.setdefault(_file_of(ref), {}).setdefault(ref.where[0], []).append(index)
        found: list[Values | Unreadable] = [{}] * len(refs)
        for (path, version), parts in wanted.items():
            with self.open_rows(path, version) as rows:
                types = rows.types
                names = [self._column(field.name, types) for field in self.fields]
                for part, indices in parts.items():
                    numbers = [refs[index].where[1] for index in indices]
                    columns = {
                        field.name: self._filled(field, rows.values(field, column, part, numbers))
                        for field, column in zip(self.fields, names, strict=True)
                    }
                    for at, index in enumerate(indices):
                        found[index] = _sample(refs[index].path, columns, at)
        return found

    @cached_property
    def _fills(self) -> Mapping[str, Value]:
        """What stands for a missing value, by field.

        Raises:
            RecipeError: It is no value of its column.
        """
        columns = {each.name: self._columns.get(each.name, each.name) for each in self.fields}
        return {
            each.name: fill_of(columns[each.name], self._missing[columns[each.name]], each)
            for each in self.fields
            if columns[each.name] in self._missing
        }

    def _filled(self, field: SourceField, cells: list[Cell]) -> list[Cell]:
        """Cells with what stands for those that are missing."""
        if field.name not in self._fills:
            return cells
        return [self._fills[field.name] if is_gone(cell) else cell for cell in cells]

    def _filled_column(
        self, field: SourceField, column: ColumnOfRows | None
    ) -> ColumnOfRows | None:
        if column is None or column.missing is None or field.name not in self._fills:
            return column
        values = column.values.copy()
        values[column.missing] = self._fills[field.name]
        return ColumnOfRows(values)

    def _check_named(self, name: str, rows: RowContainer) -> None:
        """Refuse a container without a column that the recipe names."""
        types, first = rows.types, ["path"] if self.is_index else []
        needed = dict.fromkeys([*first, *self._named, *self._missing])
        missing = [column for column in needed if column not in types]
        if missing and rows.bad and not types:
            bad = next(iter(rows.bad.values()))
            raise DataError(f"{name}, {bad}", "Correct or remove the row.")
        if missing:
            hint = nearest(missing[0], types)
            if missing[0] == "path" and self.is_index:
                hint = f"{hint} {rows_as_samples(name)}"
            columns = " and no column ".join(map(repr, missing))
            raise RecipeError(f"{name} has no column {columns}", hint)

    def _take_defaults(self, rows: RowContainer) -> None:
        """Let columns of an index mean what they are called."""
        there = {role: name for role, name in self._defaults.items() if name in rows.types}
        self._label = there.pop("label", self._label)
        self._roles |= there

    def _start(self, file: StoredFile, rows: RowContainer) -> None:
        """Let the first container decide which columns count, and what they are."""
        name = f"{self._place.name}/{file.path}"
        self._take_defaults(rows)
        if self._label is None and self._labels == "auto" and not self._as_value:
            named = [column for column in rows.types if rows.class_names(column)]
            self._label = named[0] if len(named) == 1 else None
        self._check_named(name, rows)
        if self._every:
            self._columns = self._fields_of(name, rows) | self._columns
        self.classes = tuple(rows.class_names(self._label)) if self._label else ()
        fields = (rows.field(name, column) for name, column in self._columns.items())
        self.fields = tuple(field_of_index(each) if self.is_index else each for each in fields)
        vars(self).pop("_fills", None)
        _ = self._fills  # refuses what cannot stand for a value
        kinds = {each.name: each.kind for each in self.fields}
        if self._as_value and kinds.get(_LABEL) not in (None, "value", "array"):
            found = rows.types[self._columns[_LABEL]]
            is_text = "string" in found or found.startswith("text")
            raise RecipeError(
                f"Column '{self._label}' holds {found}, but dataset.label_kind is 'value'",
                "Set dataset.label_kind to 'class', or name a column of numbers."
                if is_text
                else "Write its numbers as float64 or int64, or name a column of numbers.",
            )

    def _fields_of(self, name: str, rows: RowContainer) -> dict[str, str]:
        """Return the columns that are fields by field, where the recipe names none."""
        roles = {self._label, *self._roles.values()}
        if self.is_index:
            roles |= {"path", _LABEL} - set(self._columns.values())
        for column in rows.not_fields.keys() - roles:
            logger.info("Left out of %s: '%s' (%s)", name, column, rows.not_fields[column])
        found: dict[str, str] = {}
        for column in (each for each in rows.types if each not in {*roles, *rows.not_fields}):
            if found.setdefault(_field_name(column), column) != column:
                raise RecipeError(
                    f"'{column}' and another column of {name} are the same field",
                    "Name the columns that count in dataset.fields.",
                )
        return found

    def role_columns(self) -> dict[str, str]:
        """The columns of classes, groups and splits, by role; known once a container is open."""
        roles = {"label": None if self._as_value else self._label, **self._roles}
        return {role: column for role, column in roles.items() if column}

    def _column(self, field: str, types: Types) -> str:
        return self._columns.get(field, field if field in types else field.replace(".", "/"))

    def _check_same(self, file: StoredFile, found: Types, types: Types) -> None:
        for column in self._named:
            if found.get(column) != types[column]:
                raise DataError(
                    f"Column '{column}' of {self._place.name}/{file.path} is "
                    f"{found.get(column, 'missing')}, in others it is {types[column]}",
                    "Make the files equal, or name the columns that count in dataset.fields.",
                )

    def _check_claim(self, file: StoredFile, rows: RowContainer) -> None:
        """Refuse more rows than the file can hold, before anything is made for each of them."""
        num_rows = sum(rows.parts.values())
        if num_rows > most_bytes(file.num_bytes):
            name, size = f"{self._place.name}/{file.path}", file.num_bytes
            raise DataError(f"{name} claims {num_rows:,} rows in {size:,} bytes", "Write it again.")

    def _rows_of(self, file: StoredFile, rows: RowContainer) -> Any:
        """Return the samples of a container as an Arrow table."""
        name = f"{self._place.name}/{file.path}"
        roles, parts = self.role_columns(), rows.parts
        cells = rows.cells(set(roles.values()))
        num_rows = sum(parts.values())
        left_out = dict(rows.bad)
        names: dict[str, Any] = {}
        for role, column in roles.items():
            classes, fill = rows.class_names(column), self._missing.get(column)
            names[role], gone, bad = role_names(cells[column], classes, fill)
            gone = [] if role == "group" else gone  # such a sample is a group of its own
            wrong = [row for row in bad if row not in left_out]
            if wrong:
                cell = cells[column][wrong[0]].as_py()
                raise DataError(
                    f"{name}, {rows.place(wrong[0])}: the {role} is {cell!r}, "
                    f"which is {'none of the classes' if classes else NO_NAME}",
                    "Correct it; numbers to predict need dataset.label_kind 'value'.",
                )
            for row in gone:
                left_out.setdefault(row, f"{rows.place(row)}: {column}: {GONE}")
        self.left_out, width = left_out, len(str(max(num_rows - 1, 0)))
        self.quarantined += [
            Unreadable(f"{file.path}#{row:0{width}}", why) for row, why in left_out.items()
        ]
        split = self.split_of(file.path)
        if split is not None:
            names.setdefault("split", repeated(split, num_rows))
        columns = [self._columns[field.name] for field in self.fields]
        num_bytes = rows.num_bytes(columns) or file.num_bytes
        table = table_of_rows(file, num_bytes // num_rows, parts, names)
        return table.take(np.delete(np.arange(num_rows), list(left_out))) if left_out else table


def _put(
    found: dict[str, ColumnOfRows],
    fields: Sequence[SourceField],
    columns: Iterable[ColumnOfRows | None],
    at: NDArray[np.int64],
    num_rows: int,
) -> bool:
    """Put columns of some rows to their places among all; whether they are like the others."""
    for field, column in zip(fields, columns, strict=True):
        if column is None:
            return False
        shape, dtype = column.values.shape[1:], column.values.dtype
        if field.name not in found:
            values = np.zeros((num_rows, *shape), dtype=dtype)
            found[field.name] = ColumnOfRows(values)
        whole = found[field.name]
        if (shape, dtype) != (whole.values.shape[1:], whole.values.dtype):
            return False
        whole.values[at] = column.values
        if column.missing is not None:
            missing = np.zeros(num_rows, dtype=bool) if whole.missing is None else whole.missing
            missing[at] = column.missing
            found[field.name] = ColumnOfRows(whole.values, missing, column.reason)
    return True


def _field_name(column: str) -> str:
    """Name of the field of a column; datasets in groups of HDF5 files become `group.name`."""
    name = column.replace("/", ".")
    check_field_name(name, f"'{column}'")
    return name


def _file_of(ref: SampleRef) -> tuple[str, str]:
    """Path and version of the container of a row."""
    return ref.path.rpartition("#")[0], ref.version


def _num_bytes(values: Values | Unreadable) -> int:
    if isinstance(values, Unreadable):
        return 0
    return sum(
        len(value) if isinstance(value, bytes | str) else getattr(value, "nbytes", 8)
        for value in values.values()
    )


def _sample(path: str, columns: Mapping[str, list[Cell]], at: int) -> Values | Unreadable:
    values: dict[str, Value] = {}
    for name, cells in columns.items():
        cell = cells[at]
        if isinstance(cell, Unreadable):
            return Unreadable(path, f"{name}: {cell.reason}")
        values[name] = cell
    return values
