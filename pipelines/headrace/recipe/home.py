"""Headrace's own folder."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`$HEADRACE_HOME`, or `.headrace` in the user's home folder."""
    return Path(os.environ.get("HEADRACE_HOME") or Path.home() / ".headrace").absolute()
