"""`.npy` files that differ in their values only, read many at once.

One call puts the header of a file beside those of the others, and its body behind the others', so
that all headers are compared at once and all bodies hashed and written at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.packing.convert import Converter, FieldColumn
from headrace.packing.decode import plain_header
from headrace.packing.listed import Listed, Times, numbers

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_BEGINNING_BYTES = 4096  # headers are smaller
_MAX_BODY_BYTES = 64 * 2**20


class UniformNpyReader:
    """Reads files of a folder into memory that is used again for the next ones.

    Args:
        folder: The folder.
        converter: How the field is kept.
    """

    def __init__(self, folder: Path, converter: Converter) -> None:
        self._folder = folder
        self._converter = converter
        self._header = b""
        self._shapes: list[tuple[int, ...]] = []
        self._slots = FileSlots(b"", 0, 0)

    def read(self, files: Listed) -> FieldColumn | None:
        """The arrays of files, until the next are read.

        Args:
            files: The files; the version of each is its time in nanoseconds.

        Returns:
            None when they are not uniform, or not as they were listed: they are to be read one by
            one, which tells why.
        """
        num_files, num_bytes = len(files), files.sizes[0]
        if files.sizes.count(num_bytes) < num_files or not self._prepare(files, num_files):
            return None
        versions = files.versions
        times = versions if isinstance(versions, Times) else Times(numbers(map(int, versions)))
        folder = os.open(self._folder, _FLAGS)
        try:
            if not self._slots.read(folder, files.paths, times.times_ns):
                self._slots = FileSlots(b"", 0, 0)  # the next files may be like another one
                return None
        finally:
            os.close(folder)
        return FieldColumn(
            items=[*self._slots.bodies(num_files)],
            shapes=self._shapes * num_files,
            joined=self._slots.joined(num_files),
        )

    def _prepare(self, files: Listed, num_files: int) -> bool:
        """Make room for files like the first; whether its header may speak for others."""
        num_bytes = files.sizes[0]
        if num_bytes != self._slots.file_bytes and not self._learn(files.paths[0], num_bytes):
            return False
        if (num_bytes, num_files) > (self._slots.file_bytes, self._slots.num_files):
            self._slots = FileSlots(self._header, num_bytes - len(self._header), num_files)
        return True

    def _learn(self, path: str, num_bytes: int) -> bool:
        self._slots = FileSlots(b"", 0, 0)
        try:
            with open(self._folder / path, "rb", buffering=0) as file:
                beginning = file.read(_BEGINNING_BYTES)
        except OSError:
            return False
        plain = plain_header(beginning, num_bytes)
        if plain is None or not self._converter.fits(plain[1]):
            return False
        self._header, array = plain
        self._shapes = [array.shape] if self._converter.rule.info.ndim is not None else []
        return 0 < num_bytes - len(self._header) <= _MAX_BODY_BYTES


class FileSlots:
    """Room for some files of one size.

    Args:
        header: What every file begins with.
        body_bytes: Bytes behind it.
        num_files: Files at most.
    """

    def __init__(self, header: bytes, body_bytes: int, num_files: int) -> None:
        self.num_files = num_files
        self.file_bytes = len(header) + body_bytes
        self._body_bytes = body_bytes
        self._header = np.frombuffer(header, dtype=np.uint8)
        self._headers = np.empty((num_files, len(header)), dtype=np.uint8)
        self._joined = np.empty(num_files * body_bytes, dtype=np.uint8).data
        starts = (number * body_bytes for number in range(num_files))
        self._bodies = [self._joined[start : start + body_bytes] for start in starts]
        more = memoryview(bytearray(1))  # a file that grew has a byte for it
        rows = [row.data for row in self._headers]
        self._rooms = [[row, body, more] for row, body in zip(rows, self._bodies, strict=True)]

    def read(self, folder: int, paths: Sequence[str], times_ns: Sequence[int]) -> bool:
        """Read whole files, one open, fstat, read and close each.

        Args:
            folder: File descriptor of the folder that the paths begin in.
            paths: The files, as many as there is room for at most.
            times_ns: When each was written to last, as it was listed.

        Returns:
            Whether each is there with its time and size, and begins with the header.
        """
        opens, fstat, readv, close = os.open, os.fstat, os.readv, os.close
        size = self.file_bytes
        for path, time_ns, room in zip(paths, times_ns, self._rooms, strict=False):
            try:
                handle = opens(path, _FLAGS, dir_fd=folder)
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
        return self._joined[: num_files * self._body_bytes]
