"""Files of one size read many at once, into memory that is used again for the next ones.

One call puts the header of a file beside those of the others, and its body behind the others', so
that all headers are compared at once and all bodies hashed and written at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

FLAGS = os.O_RDONLY | os.O_CLOEXEC
"""How files are opened."""


class Slots:
    """Room for some files.

    Args:
        header: What every file begins with.
        body_bytes: Bytes behind it.
        num_files: Files at most.
    """

    def __init__(self, header: bytes, body_bytes: int, num_files: int) -> None:
        self.num_files = num_files
        self._header = np.frombuffer(header, dtype=np.uint8)
        self._headers = np.empty((num_files, len(header)), dtype=np.uint8)
        self._joined = np.empty(num_files * body_bytes, dtype=np.uint8).data
        starts = range(0, num_files * body_bytes, body_bytes)
        self._bodies = [self._joined[start : start + body_bytes] for start in starts]
        more = memoryview(bytearray(1))  # a file that grew has a byte for it
        rows = [row.data for row in self._headers]
        self._rooms = [[row, body, more] for row, body in zip(rows, self._bodies, strict=True)]
        self._file_bytes = len(header) + body_bytes

    def read(self, folder: int, paths: Sequence[str], times_ns: Sequence[int]) -> bool:
        """Read whole files, one open, fstat, read and close each.

        Args:
            folder: File descriptor of the folder that the paths begin in.
            paths: The files, as many as there is room for at most.
            times_ns: When each was written to last, as it was listed.

        Returns:
            Whether each is there with its time and size, and begins with the header; if not,
            nothing is said of any.
        """
        opens, fstat, readv, close = os.open, os.fstat, os.readv, os.close
        size = self._file_bytes
        for path, time_ns, room in zip(paths, times_ns, self._rooms, strict=False):
            try:
                handle = opens(path, FLAGS, dir_fd=folder)
            except OSError:
                return False
            try:
                if fstat(handle).st_mtime_ns != time_ns or readv(handle, room) != size:
                    return False
            except OSError:
                return False
            finally:
                close(handle)
        return bool((self._headers[: len(paths)] == self._header).all())

    def bodies(self, num_files: int) -> list[memoryview]:
        """What lies behind the header of each of the first files, until more are read."""
        return self._bodies[:num_files]

    def joined(self, num_files: int) -> memoryview:
        """The same, one after the other."""
        return self._joined[: num_files * (self._file_bytes - self._header.size)]
