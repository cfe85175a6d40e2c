"""Headrace's own folder, and paths below the user's home."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import SiteError


def home() -> Path:
    """Return `$HEADRACE_HOME`, or `.headrace` in the user's home folder; raises as `expanded`."""
    return expanded(os.environ.get("HEADRACE_HOME") or "~/.headrace")


def expanded(folder: str) -> Path:
    """Return a folder's absolute path without `~`; raise SiteError if `~` stands for no folder."""
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError:
        raise SiteError(
            f"'{folder}' lies in a home folder, and user {os.getuid()} of this machine has none",
            "Set HEADRACE_HOME or HOME to a folder, or write the whole path.",
        ) from None
