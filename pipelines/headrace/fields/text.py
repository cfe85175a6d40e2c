"""Text, what is written as JSON, and single numbers and booleans, also as text."""

from __future__ import annotations

from typing import cast

import numpy as np

from headrace.errors import UnreadableError
from headrace.fields.exact import exact, number_of
from headrace.fields.field_kind import Encoded, Kind, Value


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


class ValueKind(Kind):
    """A number or boolean per sample; its source gives the dtype."""

    name = "value"
    encodings = ()
    types = (bool, int, float, np.generic)
    options = ("dtype", "codec")
    is_plain = True

    def read(self, content: bytes, dtype: str) -> Value:
        number = number_of(text := str(TextKind().read(content, dtype)))
        if number is None:
            raise UnreadableError(f"{text[:100]!r} does not fit {dtype}")
        return cast("Value", exact(number, dtype).item())

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded:
        return Encoded(exact(value, np.dtype(dtype).newbyteorder("<")).tobytes())


def number_type(text: str) -> str:
    """Return `int64` or `float64` for the text of a number that the type holds, else empty."""
    number = number_of(text)
    if isinstance(number, int):
        return "int64" if -(2**63) <= number < 2**63 else ""
    return "" if number is None else "float64"
