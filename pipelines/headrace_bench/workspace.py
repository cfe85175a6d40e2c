"""The folder of a benchmark: with enough room, temporary, removed at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageFullError, UserError
from headrace.files.tiers import room_bytes

_MEMORY = Path("/dev/shm")


@contextmanager
def workspace(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a new folder with room for so many bytes; removed at the end, also after Ctrl-C.

    Raises:
        UserError: `folder` is not a folder.
        StorageFullError: There is not enough room.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "Name an existing one with --folder.")
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
        shutil.rmtree(made, ignore_errors=True)


def in_memory() -> Path:
    """Return a folder in memory, so that no disk is measured; else the one for temporary files."""
    return _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
