"""Looks at files for another process: a program of its own, started by `stat_process`.

It imports nothing but the standard library, so that it has started within a hundredth of a second.
"""

from __future__ import annotations

import os
import sys
from array import array
from typing import BinaryIO

NUMBER_BYTES = 8
"""Bytes of each number that goes before a message."""

GREETING = b"\n"
"""What it says first: that it has started."""


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer until nobody asks any more.

    Args:
        asked: Messages: their length, then a folder and names in it, a zero byte between each two.
        answers: Messages: their length, then bytes and time (nanoseconds since the epoch) of each
            file, int64; empty when one cannot be looked at. `GREETING` comes first.
    """
    answers.write(GREETING)
    answers.flush()
    while header := asked.read(NUMBER_BYTES):
        folder, *names = asked.read(int.from_bytes(header, "little")).split(b"\0")
        answer = _look(folder, names)
        answers.write(len(answer).to_bytes(NUMBER_BYTES, "little") + answer)
        answers.flush()


def _look(folder: bytes, names: list[bytes]) -> bytes:
    found = array("q")
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in names:
                status = os.stat(name, dir_fd=handle)
                found.append(status.st_size)
                found.append(status.st_mtime_ns)
        finally:
            os.close(handle)
    except OSError:  # who asks looks itself, and tells what is wrong
        return b""
    return found.tobytes()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
