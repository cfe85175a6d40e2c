"""Columns of Arrow tables as fields: of which kind each is, and its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecipeError, UnreadableError
from headrace.fields.field_kind import Value, kind_named, kind_of_bytes
from headrace.packing.samples import SourceField, Unreadable

_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}
_GONE = Unreadable("", "it has no value")


def arrow_field(name: str, column: str, kind: Any, first: Any) -> SourceField:
    """The field of a column."""
    import pyarrow as pa

    types = pa.types
    is_file = types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}
    if is_file or types.is_binary(kind) or types.is_large_binary(kind):
        content = _bytes(first())
        return SourceField(name, kind_of_bytes(content if isinstance(content, bytes) else b"").name)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return SourceField(name, "text")
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return SourceField(name, "value", dtype=_DTYPES.get(str(kind), str(kind)))
    if _is_numbers(kind):
        return SourceField(name, "array")
    if types.is_nested(kind):
        return SourceField(name, "text", encoding="json")
    raise RecipeError(
        f"Column '{column}' holds {kind}, which cannot be packed",
        "Name the columns that count in dataset.fields, or write it as text or numbers.",
    )


def arrow_values(field: SourceField, column: Any) -> list[Value | Unreadable]:
    """Values of the cells of a column, an Arrow array."""
    if field.kind == "array":
        return [_array(cell) for cell in column]
    cells = column.to_pylist()
    if bytes in kind_named(field.kind).types:
        return [_bytes(cell) for cell in cells]
    if field.encoding == "json":
        return [json.dumps(cell, ensure_ascii=False, default=str) for cell in cells]
    if field.kind == "text":
        return ["" if cell is None else str(cell) for cell in cells]
    return [_GONE if cell is None else cell for cell in cells]


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Class names by column, from the features that Hugging Face writes beside a schema."""
    text = (metadata or {}).get(b"huggingface")
    features = json.loads(text).get("info", {}).get("features", {}) if text else {}
    return {
        column: list(feature["names"])
        for column, feature in features.items()
        if isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and feature.get("names")
    }


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _is_numbers(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if not _is_list(kind):
        return False
    while _is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


def _bytes(cell: object) -> Value | Unreadable:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes) and content:
        return content
    if isinstance(cell, dict) and cell.get("path"):
        return Unreadable("", f"its bytes are not stored, only the path {cell['path']}")
    return _GONE if content is None else Unreadable("", "it is empty")


def _array(cell: Any) -> Value | Unreadable:
    values = cell.values
    if values is None:
        return _GONE
    try:
        return _numbers(values)
    except UnreadableError as error:
        return Unreadable("", str(error))


def _numbers(values: Any) -> NDArray[Any]:
    """Nested lists of equal length as one array."""
    if values.null_count:
        raise UnreadableError("some of its elements have no value")
    if not _is_list(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    lengths = {len(item) for item in values}
    if len(lengths) > 1:
        raise UnreadableError(f"its lists are of different lengths: {sorted(lengths)}")
    inner = _numbers(values.flatten())
    return inner.reshape(len(values), lengths.pop() if lengths else 0, *inner.shape[1:])
