"""Other file systems than this machine has, as the kernel would tell of them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest


def tell_mounts(monkeypatch: pytest.MonkeyPatch, folder: Path, table: str | bytes) -> None:
    """Have psutil read `table` in place of `/proc/self/mounts`; it lies below `folder`."""
    content = table.encode() if isinstance(table, str) else table
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "mounts").write_bytes(content)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder / "proc"))
