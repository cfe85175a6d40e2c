"""Single numbers and booleans, and texts that mean one."""

from __future__ import annotations

import numpy as np

from headrace.errors import UnreadableError
from headrace.fields.exact import exact, number_of
from headrace.fields.field_kind import Encoded, Kind, Value
from headrace.fields.text import TextKind


class ValueKind(Kind):
    """A number or boolean per sample; its source gives the dtype."""

    name = "value"
    encodings = ()
    types = (bool, int, float, np.generic)
    options = ("dtype", "codec")
    is_plain = True

    def read(self, content: bytes, dtype: str) -> Value:
        text = str(TextKind().read(content, dtype))
        number = number_of(text)
        if number is None:
            raise UnreadableError(f"{text[:100]!r} does not fit {dtype}")
        value: Value = exact(number, dtype).item()
        return value

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded:
        return Encoded(exact(value, np.dtype(dtype).newbyteorder("<")).tobytes())


def number_type(text: str) -> str:
    """Return `int64` or `float64` for the text of a number that the type holds, else empty."""
    number = number_of(text)
    if isinstance(number, int):
        return "int64" if -(2**63) <= number < 2**63 else ""
    return "" if number is None else "float64"
