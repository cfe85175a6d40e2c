"""Single numbers and booleans, and texts that mean one."""

from __future__ import annotations

import math
import re

import numpy as np

from headrace.fields.exact import exact
from headrace.fields.field_kind import Encoded, Kind, Value
from headrace.fields.text import TextKind

_WHOLE = re.compile(r"\s*[+-]?(0|[1-9][0-9]*)\s*")
_NUMBER = re.compile(
    r"\s*[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*|\s*[+-]?(nan|inf)\s*",
    re.IGNORECASE,
)


class ValueKind(Kind):
    """A number or boolean a sample, whose dtype its source tells."""

    name = "value"
    encodings = ()
    types = (bool, int, float, np.generic)
    options = ("dtype", "codec")
    is_plain = True

    def read(self, content: bytes, dtype: str) -> Value:
        text = str(TextKind().read(content, dtype))
        value: Value = exact(int(text) if _WHOLE.fullmatch(text) else float(text), dtype).item()
        return value

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded:
        return Encoded(exact(value, np.dtype(dtype).newbyteorder("<")).tobytes())


def number_type(text: str) -> str:
    """`int64` or `float64` for text that is a number which the type holds, else empty."""
    if not _NUMBER.fullmatch(text):
        return ""
    if _WHOLE.fullmatch(text):
        return "int64" if abs(float(text)) <= 2**63 and -(2**63) <= int(text) < 2**63 else ""
    return "float64" if math.isfinite(float(text)) or "n" in text.lower() else ""
