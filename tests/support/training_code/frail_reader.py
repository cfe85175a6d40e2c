"""A reader of samples as a library in C may be: it ends its process, or never returns."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path


def read(path: str) -> dict[str, str]:
    """Return the text of a file."""
    text = Path(path).read_text()
    if text == "damaged":
        ctypes.string_at(0)
    while text == "endless":
        time.sleep(1.0)
    return {"text": text}
