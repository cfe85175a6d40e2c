"""Bytes of files to values, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from headrace.packing.decode import UnreadableError
from headrace.packing.samples import SampleRef, SourceField, Unreadable, Values
from headrace.packing.sources.kinds import converter

EMPTY = "the file is empty"
"""Reason for a file without bytes."""

T = TypeVar("T")


def values_of(
    refs: Sequence[SampleRef], contents: Iterator[bytes | Unreadable], field: SourceField
) -> Iterator[Values | Unreadable]:
    """Values of samples of one field each.

    Args:
        refs: The samples.
        contents: Their bytes, or why there are none, in order.
        field: The field.
    """
    name, convert = field.name, converter(field.kind)
    for ref, content in zip(refs, contents, strict=True):
        if not content:
            yield Unreadable(ref.path, EMPTY)
        elif convert is None:
            yield {name: content} if isinstance(content, bytes) else content
        else:
            made = made_of(ref.path, content, convert)
            yield made if isinstance(made, Unreadable) else {name: made}


def made_of(
    path: str, content: bytes | Unreadable, convert: Callable[[bytes], T]
) -> T | Unreadable:
    """What `convert` makes of a file's bytes, or why it cannot.

    Args:
        path: Name of the sample.
        content: Bytes, or why there are none.
        convert: Raises `UnreadableError` for bytes that are damaged.
    """
    if isinstance(content, Unreadable):
        return content
    if not content:
        return Unreadable(path, EMPTY)
    try:
        return convert(content)
    except UnreadableError as error:
        return Unreadable(path, str(error))


def as_is(content: bytes) -> bytes:
    """The bytes themselves."""
    return content
