"""A reader of samples as a library in C may be: one damaged file ends its process."""

from __future__ import annotations

import ctypes
from pathlib import Path


def read(path: str) -> dict[str, str]:
    """Return the text of a file."""
    text = Path(path).read_text()
    if text == "damaged":
        ctypes.string_at(0)
    return {"text": text}
