"""File systems that fail: one of a few kilobytes to fill, and folders that become read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs on a new folder; the test is skipped where that is not allowed.

    Args:
        folder: Made, and unmounted at the end; its owner alone may use it.
        size: As `mount` takes it: `64k`.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left; give it back by removing the file that is returned."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount a folder over itself, read-only; the test is skipped where that is not allowed.

    Processes that run meet it as well, but for files that they have open.
    """
    if os.getuid() != 0:
        pytest.skip("mounting a folder read-only takes root")
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
