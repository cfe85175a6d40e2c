"""Where the record batches of an Arrow stream lie, without reading what they hold.

Format: https://arrow.apache.org/docs/format/Columnar.html, "Encapsulated message format"; its
metadata are FlatBuffers tables (`Message.fbs`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3  # fields of a Message
_NUM_ROWS = 0  # field of a RecordBatch
_READ_BYTES = 4096  # the metadata of most messages are smaller


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a stream."""

    start: int
    """First byte."""
    end: int
    """Byte behind the last."""
    kind: int
    """1 is the schema, 2 a dictionary, 3 a record batch."""
    num_rows: int
    """Rows of a record batch; else 0."""


class ArrowStream:
    """An Arrow stream of which single record batches are read.

    Args:
        file: A `pyarrow.NativeFile` with places.
    """

    def __init__(self, file: Any) -> None:
        import pyarrow as pa

        self._file = file
        file.seek(0)
        self._first = pa.ipc.read_message(file)
        self._first_end = file.tell()
        self.schema = pa.ipc.read_schema(self._first)

    @cached_property
    def batches(self) -> dict[int, int]:
        """Rows of every record batch, by its first byte.

        Raises:
            ValueError: The stream is damaged or cut.
        """
        found = (message for message in self._messages if message.kind == _BATCH)
        return {message.start: message.num_rows for message in found}

    def batch(self, start: int) -> Any:
        """One record batch.

        Args:
            start: Its first byte.
        """
        import pyarrow as pa

        if not any(pa.types.is_dictionary(field.type) for field in self.schema):
            return pa.ipc.read_record_batch(self._message(start), self.schema)
        dictionaries = [each.start for each in self._messages if each.kind == _DICTIONARY]
        messages = [self._first, *map(self._message, [*dictionaries, start])]
        small = pa.ipc.open_stream(b"".join(bytes(each.serialize()) for each in messages))
        return small.read_next_batch()

    @cached_property
    def _messages(self) -> list[Message]:
        return list(_messages(self._file, self._first_end))

    def _message(self, start: int) -> Any:
        import pyarrow as pa

        self._file.seek(start)
        return pa.ipc.read_message(self._file)


def _messages(file: Any, start: int) -> Iterator[Message]:
    size = file.size()
    while start < size:
        file.seek(start)
        head = file.read(min(_READ_BYTES, size - start))
        if len(head) < 8 or not any(head[4:8]):
            return  # the end is marked, or the stream just ends
        continues, num_bytes = struct.unpack_from("<II", head)
        if continues != _CONTINUES:
            raise ValueError(f"there is no message at byte {start:,}")
        if len(head) < 8 + num_bytes:
            file.seek(start + 8)
            head = head[:8] + file.read(num_bytes)
        message = _message(start, head[8 : 8 + num_bytes])
        if message.end > size:
            raise ValueError(f"it is cut in the message at byte {start:,}")
        yield message
        start = message.end


def _message(start: int, metadata: bytes) -> Message:
    try:
        table = _Table(metadata, *struct.unpack_from("<I", metadata))
        kind = table.number("<B", _TYPE)
        end = start + 8 + len(metadata) + table.number("<q", _BODY_BYTES)
        num_rows = table.table(_HEADER).number("<q", _NUM_ROWS) if kind == _BATCH else 0
    except struct.error as error:
        raise ValueError(f"the message at byte {start:,} is damaged") from error
    return Message(start=start, end=end, kind=kind, num_rows=num_rows)


class _Table:
    """A FlatBuffers table."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._start = start

    def number(self, form: str, field: int) -> int:
        """The value of a field of numbers; 0 where it is left out."""
        offset = self._offset(field)
        return int(
            struct.unpack_from(form, self._content, self._start + offset)[0] if offset else 0
        )

    def table(self, field: int) -> _Table:
        """The value of a field that is a table."""
        place = self._start + self._offset(field)
        return _Table(self._content, place + self._unpacked("<I", place))

    def _offset(self, field: int) -> int:
        index = self._start - self._unpacked("<i", self._start)
        at = 4 + 2 * field
        return self._unpacked("<H", index + at) if at < self._unpacked("<H", index) else 0

    def _unpacked(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self._content, place)[0])
