"""Columns of Arrow as arrays of NumPy: which types are read, as what, and the values."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from headrace.errors import RecipeError, UnreadableError
from headrace.fields.field_kind import Value, kind_named, kind_of_bytes
from headrace.packing.samples import SourceField, Unreadable
from headrace.packing.sources.row_container import GONE, Cell, ColumnOfRows

TEXTS = ("string", "large_string")
BYTES = ("binary", "large_binary")

_GONE = Unreadable("", GONE)


def is_number(kind: Any) -> bool:
    """Whether a type is one of numbers, true and false included."""
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in tests)


def is_list(kind: Any) -> bool:
    """Whether a type is one of lists, of any length or one."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def as_plain(column: Any) -> Any:
    """Return a column in its `plain_type`; as it is if it has none."""
    kind = plain_type(column.type)
    return column if kind in (None, column.type) else column.cast(kind)


def plain_type(kind: Any) -> Any:
    """Return the type that a column is read in; None if it cannot be packed.

    Dates, times and decimals are read as text, dictionaries as their values. Arrow's views cannot:
    pyarrow takes no rows of them, and crashes where it converts them.
    """
    name = str(kind)
    if isinstance(kind, pa.BaseExtensionType):  # a tensor would lose its shape
        return None if len(getattr(kind, "shape", ())) > 1 else plain_type(kind.storage_type)
    if name.startswith("dictionary<"):
        return plain_type(kind.value_type)
    if name.startswith(("timestamp", "date", "time", "decimal")):
        return pa.string()
    if name.startswith("fixed_size_binary"):
        return pa.binary()
    return kind if name in (*TEXTS, *BYTES, "null") or is_number(kind) else _plain_nested(kind)


def _plain_nested(kind: Any) -> Any:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    found = [plain_type(field.type) for field in fields]
    if any(each is None or str(each) in BYTES for each in found):  # JSON has no bytes
        return None
    fields = [field.with_type(each) for field, each in zip(fields, found, strict=True)]
    if pa.types.is_struct(kind):
        return pa.struct(fields) if len({field.name for field in fields}) == len(fields) else None
    if pa.types.is_map(kind):
        return pa.map_(*found[0])
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    return pa.list_(fields[0], getattr(kind, "list_size", -1)) if is_list(kind) else None


def coded(column: Any) -> Any:
    """Return the cells of a column as a dictionary array."""
    column = as_plain(column)
    column.validate(full=True)  # names the row of a text that is not UTF-8
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        return column.dictionary_encode()
    except pa.ArrowNotImplementedError:  # lists: as bytes, which are refused by name later
        cells = (None if cell is None else repr(cell).encode() for cell in column.to_pylist())
        return pa.array(cells, pa.binary()).dictionary_encode()


def column_of(field: SourceField, array: Any) -> ColumnOfRows:
    """Return an Arrow array as values of a field."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    array = as_plain(array)
    if field.kind in ("value", "array"):
        with suppress(UnreadableError):  # lists of different lengths
            values = numbers_of(array.drop_null())
            if not array.null_count:
                return ColumnOfRows(values)
            missing = array.is_null().to_numpy(zero_copy_only=False)
            whole = np.zeros((len(array), *values.shape[1:]), dtype=values.dtype)
            whole[~missing] = values
            return ColumnOfRows(whole, dict.fromkeys(np.flatnonzero(missing).tolist(), GONE))
    return ColumnOfRows.of(_cells(field, array))


def numbers_of(array: Any) -> NDArray[Any]:
    """Return numbers, or nested lists of one shape, as an array; else an `UnreadableError`."""
    if array.null_count:
        raise UnreadableError("some of its elements have no value")
    if not is_list(array.type):
        if not is_number(array.type):
            raise UnreadableError(f"{array.type} is not a number")
        return np.asarray(array.to_numpy(zero_copy_only=False))
    lengths = sorted(pc.unique(pc.list_value_length(array)).to_pylist())
    if len(lengths) > 1:
        raise UnreadableError(f"its lists are of different lengths: {lengths}")
    inner = numbers_of(array.flatten())
    return inner.reshape(
        len(array), *(lengths or [getattr(array.type, "list_size", 0)]), *inner.shape[1:]
    )


def field_of_type(name: str, column: str, kind: Any, first: Any) -> SourceField:
    """Return a field for a column; `first` returns its first cell that is not empty."""
    found = plain_type(kind)
    plain = pa.null() if found is None else found
    if _is_file(kind) or str(plain) in BYTES:
        content = _bytes(first())
        return SourceField(name, kind_of_bytes(content if isinstance(content, bytes) else b"").name)
    if str(plain) in TEXTS:
        return SourceField(name, "text")
    element = plain
    while is_list(element):
        element = element.value_type
    if is_number(element):
        dtype = np.dtype(element.to_pandas_dtype()).name
        return SourceField(name, "array") if is_list(plain) else SourceField(name, "value", dtype)
    if pa.types.is_nested(plain):
        return SourceField(name, "text", encoding="json")
    raise RecipeError(
        f"Column '{column}' holds {kind}, which cannot be packed",
        "Name the columns that count in dataset.fields, or write it as text or numbers.",
    )


def _cells(field: SourceField, column: Any) -> list[Cell]:
    if field.kind == "array":
        return [_array(cell) for cell in column]
    if field.kind == "text":
        return [_text(cell) if cell.is_valid else _GONE for cell in column]
    cells = column.to_pylist()
    if bytes in kind_named(field.kind).types:
        return [_bytes(cell) for cell in cells]
    return [_GONE if cell is None else cell for cell in cells]


def _is_file(kind: Any) -> bool:
    """Whether a type is one of files, as Hugging Face has them: their bytes and names."""
    inner = {each.name: str(each.type) for each in kind} if pa.types.is_struct(kind) else {}
    return inner.keys() == {"bytes", "path"} and inner["bytes"] in BYTES


def _text(cell: Any) -> Value | Unreadable:
    try:
        value = cell.as_py()
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except UnicodeDecodeError as error:
        return Unreadable("", f"not UTF-8: {error}")


def _bytes(cell: object) -> Value | Unreadable:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes) and content:
        return content
    if isinstance(cell, dict) and cell.get("path"):
        return Unreadable("", f"its bytes are not stored, only the path {cell['path']}")
    return _GONE if content is None else Unreadable("", "it is empty")


def _array(cell: Any) -> Value | Unreadable:
    if not cell.is_valid:
        return _GONE
    try:
        return numbers_of(cell.values)
    except UnreadableError as error:
        return Unreadable("", str(error))


def has_content(cell: Any) -> bool:
    """Return whether a cell has bytes that show what its column holds."""
    return bool(cell.get("bytes") if isinstance(cell, dict) else cell)
