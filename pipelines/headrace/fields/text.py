"""Text, and what is written as JSON."""

from __future__ import annotations

from headrace.errors import UnreadableError
from headrace.fields.field_kind import Kind, Value


class TextKind(Kind):
    """UTF-8, read as `str`."""

    name = "text"
    plural = "texts"
    suffixes = (".txt", ".json")
    encodings = ("text", "json")
    types = (str,)
    is_text = True

    def encoding_of(self, suffix: str) -> str:
        return "json" if suffix == ".json" else ""

    def read(self, content: bytes, dtype: str) -> Value:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UnreadableError(f"not UTF-8: {error}") from None

    def decode(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"{len(content)} bytes are no text: {error}") from error
