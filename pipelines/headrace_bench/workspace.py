"""The folder that a benchmark works in: with room, of its own, and gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageFullError, UserError
from headrace.files.tiers import room_bytes


@contextmanager
def workspace(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """A fresh folder, removed at the end, also after Ctrl-C; with room for so many bytes at once.

    Raises:
        UserError: `folder` is none.
        StorageFullError: There is not so much room.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", "Name one that exists with --folder.")
    room = room_bytes(folder)
    if room < needed_bytes:
        raise StorageFullError(
            f"No room in {folder}: the benchmark needs {needed_bytes:,} bytes there, "
            f"{room:,} are available",
            "Lower --total, or name another folder with --folder.",
        )
    made = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=folder))
    try:
        yield made
    finally:
        remove(made)


def remove(folder: Path) -> None:
    """Remove a folder of the benchmark with all that it holds."""
    shutil.rmtree(folder, ignore_errors=True)
