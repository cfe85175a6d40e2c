"""Containers of rows and columns: their parts, and the values of their columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.fields.field_kind import Value
from headrace.packing.samples import Fields, SourceField, Unreadable

GONE = "it has no value"
"""Why a cell without a value cannot be packed."""

NO_NAME = "neither text nor a whole number"
"""What a class, group or split cannot be."""

Cell: TypeAlias = "Value | Unreadable"
"""A value, or why there is none; the path of the sample is not known yet."""

Types = Mapping[str, str]
"""Type of every column, as the format writes it."""


class NoTableError(ValueError):
    """A container cannot be read; `hint` is the way out."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True)
class ColumnOfRows:
    """A column of some rows."""

    values: NDArray[Any] | list[Any]
    """Numbers of one shape, `(num_rows, *shape)`, or a list of values."""
    wrong: Mapping[int, str] = field(default_factory=dict)
    """Why rows have no value, by their position."""

    @classmethod
    def of(cls, cells: list[Cell]) -> ColumnOfRows:
        """Return a column of single cells."""
        rows = enumerate(cells)
        return cls(cells, {row: cell.reason for row, cell in rows if isinstance(cell, Unreadable)})

    def value(self, row: int) -> Value:
        """Return the value of a row; an array is a copy."""
        found = self.values[row]
        if isinstance(self.values, list):
            return found  # type: ignore[no-any-return]
        value: Value = found.item() if self.values.ndim == 1 else found.copy()
        return value


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
        """Return the bytes of all rows of some columns; 0 if unknown."""
        del columns
        return 0

    @abstractmethod
    def field(self, name: str, column: str) -> SourceField:
        """Return a field for a column, without that; may read its first value.

        Raises:
            RecipeError: Its type cannot be packed.
        """

    @abstractmethod
    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        """Return all cells of columns of label, group and split, as dictionary arrays of Arrow."""

    @property
    def bad(self) -> Mapping[int, str]:
        """Why rows cannot be read, by their number."""
        return {}

    def place(self, row: int) -> str:
        """Return where a row is, for messages."""
        return f"row {row}"

    def columns(self, fields: Fields, part: int, rows: NDArray[np.int64]) -> Iterator[ColumnOfRows]:
        """Yield some rows of a part, ascending, by field."""
        raise NotImplementedError

    def pieces(
        self, fields: Fields, part: int, rows: NDArray[np.int64]
    ) -> Iterator[tuple[slice, Iterable[ColumnOfRows]]]:
        """Yield the same, for as many of the rows as are read at once."""
        yield slice(len(rows)), self.columns(fields, part, rows)

    @property
    def not_fields(self) -> Mapping[str, str]:
        """Why columns are no fields unless the recipe names them, by column."""
        return {}

    def class_names(self, column: str) -> Sequence[str]:
        """Return the class names that whole numbers in a column stand for; empty for none."""
        return ()
