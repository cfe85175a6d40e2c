"""Files of arrays that differ in their values only: one is looked at for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.packing.convert import Column, Converter
from headrace.packing.decode import UnreadableError, decode_array, plain_header
from headrace.packing.samples import Unreadable


def alike(converter: Converter, path: str, contents: Sequence[bytes | Unreadable]) -> Column | None:
    """The bytes of the arrays of `.npy` files, when equal headers say that all are as the first.

    Args:
        converter: How the field is kept.
        path: Name of the first file.
        contents: The files.

    Returns:
        None when each must be looked at.

    Raises:
        DataError: They have another shape or dtype than the example.
    """
    first = contents[0]
    if len(contents) == 1 or converter.rule.kind != "array" or not isinstance(first, bytes):
        return None
    try:
        header = plain_header(first)
        array = decode_array(first)
        column = Column()
        converter.add(path, array, column)
    except UnreadableError:
        return None
    if header is None or array.dtype != np.dtype(converter.rule.info.dtype):
        return None
    size, start = len(first), len(header)
    items = [
        content[start:]
        for content in contents
        if isinstance(content, bytes) and len(content) == size and content.startswith(header)
    ]
    if len(items) < len(contents):
        return None
    column.items[:] = items
    column.shapes *= len(items)
    return column
