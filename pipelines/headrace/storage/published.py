"""What was published of a staged copy: its files, as they were then."""

from __future__ import annotations

from pathlib import Path

from headrace.record import Record


class StagedFile(Record):
    """A file as it was when it was published."""

    num_bytes: int
    """Size."""
    mtime_ns: int
    """Time of its last change, nanoseconds since the epoch."""


class Complete(Record):
    """`.complete.json`: what was published."""

    splits: tuple[str, ...]
    """Splits of the copy's manifest."""
    files: dict[str, StagedFile]
    """All files by path relative to the folder; shards that are absent were left at the source."""


def stat_of(path: Path) -> StagedFile | None:
    """A file as it is now; None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return StagedFile(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
