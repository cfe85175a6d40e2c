"""The samples that rows of containers are: which columns count, and which rows are left out.

Functions of what a recipe asks for and what an opened container holds.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.errors import DataError, RecipeError, nearest
from headrace.fields.field_kind import Value, kind_named
from headrace.objects.protocol import StoredFile
from headrace.packing.sample_table import ROLES, SampleTable, coded_texts, repeated, stop_within
from headrace.packing.samples import READ_BYTES, Fields, SourceField
from headrace.packing.sources.files import check_field_name, rows_as_samples
from headrace.packing.sources.row_container import GONE, NO_NAME, RowContainer, Types
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.format import most_bytes

logger = logging.getLogger(__name__)

LABEL = "label"
PATHS = ("path", "file_name")
"""Columns of an index that may name files; the second as in an imagefolder of Hugging Face."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The columns that a recipe asks for."""

    spec: DatasetSpec
    fields: Mapping[str, str]
    """Column by field, with the number to predict as `label`; empty for all columns."""
    roles: Mapping[str, str]
    """Columns of classes, groups and splits, by role."""
    as_value: bool
    """Whether the label is a number to predict."""
    every: bool
    """Whether columns that the recipe does not name are fields."""
    is_index: bool = False

    @classmethod
    def of(cls, spec: DatasetSpec) -> Asked:
        """Return what a recipe asks for; `RecipeError` for a number without its column."""
        label = spec.label_field if spec.labels != "none" else None
        as_value, fields = spec.label_kind == "value" and spec.labels != "none", dict(spec.fields)
        if as_value:
            if label is None:
                raise RecipeError(
                    "dataset.label_kind is 'value', but dataset.label_field names no column",
                    "Name the column that holds the numbers to predict.",
                )
            fields[LABEL], label = label, None
        roles = {LABEL: label, "group": spec.group_field, "split": spec.split_field}
        return cls(
            spec=spec,
            fields=fields,
            roles={role: column for role, column in roles.items() if column},
            as_value=as_value,
            every=not spec.fields,
        )

    def path_column(self, types: Iterable[str]) -> str:
        """Return the column of an index that names files."""
        default = PATHS[1] if PATHS[1] in types and PATHS[0] not in types else PATHS[0]
        return self.spec.path_field or default

    @property
    def named(self) -> list[str]:
        """Columns that the recipe names."""
        return [*self.fields.values(), *self.roles.values()]

    @property
    def defaults(self) -> Mapping[str, str]:
        """Columns of an index that are roles by their names, by role."""
        roles = {*ROLES} - self.roles.keys() if self.is_index else set[str]()
        if self.spec.labels == "none" or self.as_value:
            roles -= {LABEL}
        return {role: role for role in ROLES if role in roles}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The columns that count in all containers of a source."""

    fields: Fields = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    """Columns of classes, groups and splits, by role."""
    classes: tuple[str, ...] = ()
    """Class names in the source's own order; empty: order by name."""
    missing: Mapping[str, str | float] = field(default_factory=dict)
    """Stand-ins of missing values by column."""

    @property
    def named(self) -> list[str]:
        """Columns of fields and roles."""
        return [*(each.column for each in self.fields), *self.roles.values()]

    @cached_property
    def fills(self) -> Mapping[str, Value]:
        """Stand-ins of missing values by field; `RecipeError` if one does not fit its column."""
        return {
            each.name: _fill_of(each.column, self.missing[each.column], each)
            for each in self.fields
            if each.column in self.missing
        }


def choose(asked: Asked, rows: RowContainer, container: str, other: str = "") -> Chosen:
    """Return the columns that count, by the first container; `other` is another one's path.

    Raises:
        RecipeError: It lacks a column that the recipe names, or one cannot be a field.
        DataError: Its first row cannot be read.
    """
    types = rows.types
    defaults = {role: column for role, column in asked.defaults.items() if column in types}
    roles = {**asked.roles, **defaults}
    if LABEL not in roles and asked.spec.labels == "auto" and not asked.as_value:
        named = [column for column in types if rows.class_names(column)]
        roles |= {LABEL: named[0]} if len(named) == 1 else {}
    _check_named(asked, rows, container, other)
    columns = dict(asked.fields)
    if asked.every:
        taken = {*roles.values(), *([asked.fields[LABEL]] if asked.as_value else [])}
        columns = _other_columns(asked, taken, rows, container) | columns
    label = roles.get(LABEL)
    fields = tuple(
        replace(rows.field(name, column), column=column, type=types[column])
        for name, column in columns.items()
    )
    chosen = Chosen(
        fields=tuple(map(_field_of_index, fields)) if asked.is_index else fields,
        roles=roles,
        classes=tuple(rows.class_names(label)) if label else (),
        missing=asked.spec.missing,
    )
    _ = chosen.fills
    if asked.as_value:
        _check_numbers(asked, chosen, types)
    return chosen


def _check_named(asked: Asked, rows: RowContainer, name: str, other: str) -> None:
    """Refuse a container without a column that the recipe names."""
    types, path = rows.types, asked.path_column(rows.types)
    needed = dict.fromkeys([*([path] if asked.is_index else []), *asked.named, *asked.spec.missing])
    missing = [column for column in needed if column not in types]
    if missing and rows.bad and not types:
        raise DataError(f"{name}, {next(iter(rows.bad.values()))}", "Correct or remove the row.")
    if missing:
        hint = nearest(missing[0], types)
        if missing[0] == path and asked.is_index:
            names = "Name the column of the files in dataset.path_field."
            hint = f"{hint} {names} {rows_as_samples(name)}"
        if other:
            hint = f"{hint} dataset.include leaves files without it out, as in ['{other}']."
        columns = " and no column ".join(map(repr, missing))
        raise RecipeError(f"{name} has no column {columns}", hint)


def _other_columns(asked: Asked, roles: set[str], rows: RowContainer, name: str) -> dict[str, str]:
    """Return the columns that are fields by field, where the recipe names none."""
    if asked.is_index:
        roles |= {asked.path_column(rows.types), LABEL} - set(asked.fields.values())
    for column in rows.not_fields.keys() - roles:
        logger.info("Left out of %s: '%s' (%s)", name, column, rows.not_fields[column])
    found: dict[str, str] = {}
    for column in (each for each in rows.types if each not in {*roles, *rows.not_fields}):
        field_name = column.replace("/", ".")
        check_field_name(field_name, f"'{column}'")
        if found.setdefault(field_name, column) != column:
            raise RecipeError(
                f"'{column}' and another column of {name} are the same field",
                "Name the columns that count in dataset.fields.",
            )
    return found


def _check_numbers(asked: Asked, chosen: Chosen, types: Types) -> None:
    """Refuse a number to predict that is none."""
    column = asked.fields[LABEL]
    kind = next(each.kind for each in chosen.fields if each.name == LABEL)
    if kind in ("value", "array"):
        return
    is_text = "string" in types[column] or types[column].startswith("text")
    raise RecipeError(
        f"Column '{column}' holds {types[column]}, but dataset.label_kind is 'value'",
        "Set dataset.label_kind to 'class', or name a column of numbers."
        if is_text
        else "Write its numbers as float64 or int64, or name a column of numbers.",
    )


def check_container(
    file: StoredFile, name: str, rows: RowContainer, chosen: Chosen, types: Types
) -> None:
    """Raise a DataError for columns unlike those of the first, or more rows than a file can hold.

    Nothing is made for each row before.
    """
    found = rows.types
    for column in chosen.named:
        if found.get(column) != types[column]:
            raise DataError(
                f"Column '{column}' of {name} is {found.get(column, 'missing')}, in others it is "
                f"{types[column]}",
                "Make the files equal, name the columns that count in dataset.fields, or leave "
                "files out by dataset.include.",
            )
    num_rows = sum(rows.parts.values())
    if num_rows > most_bytes(file.num_bytes):
        raise DataError(
            f"{name} claims {num_rows:,} rows in {file.num_bytes:,} bytes", "Write it again."
        )


def listed_rows(
    file: StoredFile, name: str, rows: RowContainer, chosen: Chosen, split: str | None
) -> tuple[Any, dict[int, str]]:
    """Return the rows of a container, and why some of them are no samples, by number.

    `name` is for messages; `split` is that of all rows if no column gives it.

    Raises:
        DataError: A class, group or split is neither text nor a whole number.
    """
    cells, left_out = rows.cells(set(chosen.roles.values())), dict(rows.bad)
    num_rows = sum(rows.parts.values())
    names: dict[str, Any] = {}
    for role, column in chosen.roles.items():
        classes = rows.class_names(column)
        names[role], gone, bad = _role_names(cells[column], classes, chosen.missing.get(column))
        wrong = [row for row in bad if row not in left_out]
        if wrong:
            cell = cells[column][wrong[0]].as_py()
            raise DataError(
                f"{name}, {rows.place(wrong[0])}: the {role} is {cell!r}, "
                f"which is {'none of the classes' if classes else NO_NAME}",
                "Correct it; numbers to predict need dataset.label_kind 'value'.",
            )
        for row in gone if role != "group" else ():  # without one, a sample is its own group
            left_out.setdefault(row, f"{rows.place(row)}: {column}: {GONE}")
    if split is not None:
        names.setdefault("split", repeated(split, num_rows))
    num_bytes = rows.num_bytes(each.column for each in chosen.fields) or file.num_bytes
    table = table_of_rows(file, num_bytes // num_rows, rows.parts, names)
    kept = np.delete(np.arange(num_rows), list(left_out))
    return table.take(kept) if left_out else table, left_out


def table_of_rows(
    file: StoredFile, row_bytes: int, parts: Mapping[int, int], texts: Mapping[str, Any]
) -> Any:
    """Return the rows of one container, columns for a `SampleTable`.

    `parts` are rows by the number of the part, `texts` the label, group and split that are known.
    """
    num_rows, sizes = sum(parts.values()), list(parts.values())
    columns = {
        "path": repeated(f"{file.path}#{0:0{len(str(num_rows - 1))}}", num_rows),
        "row": np.arange(num_rows),
        "bytes": np.full(num_rows, row_bytes),
        "version": repeated(file.version, num_rows),
        "place_0": np.repeat(list(parts), sizes),
        "place_1": np.concatenate(list(map(np.arange, sizes))),
    }
    return pa.table({**columns, **texts})


def windows(refs: SampleTable) -> Iterator[tuple[int, int]]:
    """Yield where samples are cut that are read at once, about `READ_BYTES`.

    If possible, all before a cut lie before all behind it, so that nothing is read twice.
    """
    ends, rows = np.cumsum(refs.numbers("bytes")), refs.numbers("row")
    containers = refs.column("path").indices.to_numpy().astype(np.int64)
    rows = rows + containers * (rows.max(initial=0) + 1)
    highest = np.maximum.accumulate(rows)[:-1]
    lowest = np.minimum.accumulate(rows[::-1])[::-1][1:]
    cuts = [0, *(np.flatnonzero(highest < lowest) + 1).tolist(), len(refs)]
    start = 0
    while start < len(refs):
        most = stop_within(ends, start, READ_BYTES)
        cut = cuts[bisect_right(cuts, most) - 1]
        stop = cut if cut > start else most
        yield start, stop
        start = stop


def _role_names(
    cells: Any, classes: Sequence[str], fill: str | float | None
) -> tuple[Any, list[int], list[int]]:
    """Return names of classes, groups or splits; rows without one, and rows with another value."""
    if not isinstance(fill, str | None) and float(fill).is_integer():
        fill = classes[int(fill)] if 0 <= fill < len(classes) else int(fill)
    if fill is not None and classes and fill not in classes:
        raise RecipeError(f"dataset.missing names the class {fill!r}", nearest(str(fill), classes))
    values = [*cells.dictionary.to_pylist(), None]
    codes = cells.indices.cast("int64").fill_null(len(values) - 1)
    names: list[str | None] = [""] * len(values)
    gone, bad = [], []
    for code, cell in enumerate(values):
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            names[code] = None if fill is None else str(fill)
            gone += [code] if fill is None else []
        elif classes and isinstance(cell, int) and 0 <= cell < len(classes):
            names[code] = classes[cell]
        elif not classes and isinstance(cell, str | int):
            names[code] = str(cell).strip()
        else:
            bad.append(code)
    found = (np.flatnonzero(np.isin(codes, some)).tolist() for some in (gone, bad))
    return coded_texts(names, codes), *found


def _field_of_index(field: SourceField) -> SourceField:
    """Return a field of an index: lists of users are texts of JSON, numbers of the widest types."""
    if field.kind == "array" and field.mixed is None:
        return replace(field, kind="text", encoding="json", type="json")
    widest = {"i": "int64", "u": "uint64", "f": "float64"}
    kind = np.dtype(field.dtype).kind if field.dtype else ""
    return replace(field, dtype=widest.get(kind, field.dtype))


def _fill_of(column: str, given: str | float, field: SourceField) -> Value:
    """Return the stand-in of missing values as a value of the field."""
    if field.encoding == "json":
        with suppress(ValueError):  # a text that is JSON stands for itself
            return json.dumps(json.loads(str(given)), ensure_ascii=False)
        return json.dumps(given, ensure_ascii=False)
    if kind_named(field.kind).is_text and isinstance(given, str):
        return given
    with suppress(ValueError, TypeError):
        number = float(given)
        made = np.array(number).astype(field.dtype or "U")
        if made.dtype.kind == "f" or made == number:
            return cast("Value", made.item())
    raise RecipeError(
        f"dataset.missing.{column} is {given!r}, but the column holds {field.dtype or field.kind}",
        "Write a text for a column of texts, and a number of its type for one of numbers.",
    )
