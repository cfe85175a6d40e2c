"""Files of arrays that differ in their values only: one is looked at for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.packing.convert import Column, Converter
from headrace.packing.decode import UnreadableError, decode_array, plain_header
from headrace.packing.samples import Unreadable
from headrace.shards.streams import Buffer

_VIEWED_BYTES = 16 * 2**10  # copying less is as fast as making a view


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
    rest: Callable[[bytes], Buffer] = _view if size > _VIEWED_BYTES else bytes
    items = [
        rest(content)[start:]
        for content in contents
        if isinstance(content, bytes) and len(content) == size and content.startswith(header)
    ]
    if len(items) < len(contents):
        return None
    column.items[:] = items
    column.shapes *= len(items)
    return column


def _view(content: bytes) -> Buffer:
    return memoryview(content)
