"""Containers of rows and columns: what a format says of one, and what cells can be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecipeError, nearest
from headrace.fields.field_kind import Value, kind_named
from headrace.packing.sample_table import coded_texts
from headrace.packing.samples import SourceField, Unreadable

GONE = "it has no value"
"""Why a cell without a value cannot be packed."""

NO_NAME = "neither text nor a whole number"
"""What a class, group or split cannot be."""

Cell: TypeAlias = "Value | Unreadable"
"""A value, or why it is none; the path of the sample is not known yet."""


Types = Mapping[str, str]
"""Type of every column, as the format writes it."""


RowsOfPart: TypeAlias = "tuple[int, NDArray[np.int64], NDArray[np.int64]]"
"""A part of a container, rows of it, ascending, and where they stand among all that are read."""


@dataclass(frozen=True)
class ColumnOfRows:
    """A column of some rows."""

    values: NDArray[Any]
    """Numbers of one shape, `(num_rows, *shape)`."""
    missing: NDArray[np.bool_] | None = None
    """Which rows have no value, `(num_rows,)`; None when all have one."""
    reason: str = ""
    """Why they have none."""


class RowContainer(ABC):
    """An opened container."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[int, int]:
        """Rows in each of the parts that are read at once, in order, by the part's number."""

    @property
    @abstractmethod
    def types(self) -> Types:
        """Type of every column, as the format writes it."""

    def num_bytes(self, columns: Iterable[str]) -> int:
        """Bytes of all rows of some columns where the file is compressed; else 0, not told."""
        del columns
        return 0

    @abstractmethod
    def field(self, name: str, column: str) -> SourceField:
        """What a column holds; may read its first value.

        Raises:
            RecipeError: Its type cannot be packed.
        """

    @abstractmethod
    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        """All cells of columns of label, group and split, as dictionary arrays of Arrow."""

    @property
    def bad(self) -> Mapping[int, str]:
        """Why rows cannot be read, by their number."""
        return {}

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"row {row}"

    @abstractmethod
    def values(self, field: SourceField, column: str, part: int, rows: Sequence[int]) -> list[Cell]:
        """Values of some rows of a part."""

    def columns(
        self, names: Sequence[str], part: int, rows: NDArray[np.int64]
    ) -> Iterable[ColumnOfRows | None]:
        """Some rows of a part, ascending, by column; None where they must be read one by one."""
        del part, rows
        return [None] * len(names)

    @property
    def not_fields(self) -> Mapping[str, str]:
        """Why columns are no fields unless the recipe names them, by column."""
        return {}

    def class_names(self, column: str) -> Sequence[str]:
        """Names of the classes that the whole numbers in a column stand for; empty for none."""
        return ()


def role_names(
    cells: Any, classes: Sequence[str], fill: str | float | None
) -> tuple[Any, list[int], list[int]]:
    """Names of classes, groups or splits; rows that have none, and rows with what is no name."""
    if isinstance(fill, float) and fill.is_integer():
        fill = int(fill)
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


def field_of_index(field: SourceField) -> SourceField:
    """A field of an index: lists are texts of JSON, numbers of the widest types."""
    if field.kind == "array":
        return SourceField(field.name, "text", encoding="json")
    widest = {"i": "int64", "u": "uint64", "f": "float64"}
    return (
        replace(field, dtype=widest.get(np.dtype(field.dtype).kind, field.dtype))
        if field.dtype
        else field
    )


def is_gone(cell: Cell) -> bool:
    """Whether a cell has no value."""
    return isinstance(cell, Unreadable) and cell.reason == GONE


def fill_of(column: str, given: str | float, field: SourceField) -> Value:
    """What a recipe gives for missing values, as a value of the field."""
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
