"""Signs of life of ranks: a counter in a mapped file, so that a beat costs no system call."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_LAYOUT = struct.Struct("<Qd")


class Beat:
    """A rank's side: counts up.

    Args:
        path: File to map; node and rank share a machine.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(_LAYOUT.pack(0, time.monotonic()))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._count = 0

    def tick(self) -> None:
        """Tell that the rank has got one thing further."""
        self._count += 1
        _LAYOUT.pack_into(self._memory, 0, self._count, time.monotonic())


def read_beat(path: Path) -> tuple[int, float | None]:
    """A node's side: beats so far, and when the last one was; `(0, None)` before the first.

    That is in seconds of `time.monotonic`, which is one clock for all processes of a machine.
    """
    try:
        count, at_s = _LAYOUT.unpack(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, None
    return (count, at_s) if count else (0, None)
