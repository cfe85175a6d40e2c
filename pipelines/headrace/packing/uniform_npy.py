"""`.npy` files that differ in their values only, read many at once.

One call puts the header of a file beside those of the others, and its body behind the others', so
that all headers are compared at once and all bodies hashed and written at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headrace.packing.convert import Converter, FieldColumn
from headrace.packing.decode import plain_header
from headrace.packing.listed import Listed, Times, numbers
from headrace.packing.samples import Content, Unreadable
from headrace.shards.placing import Buffer

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_BEGINNING_BYTES = 4096  # headers are smaller
_MAX_BODY_BYTES = 64 * 2**20
_VIEWED_BYTES = 16 * 2**10  # copying less is as fast as making a view


class UniformNpyReader:
    """Takes the arrays of whole files at once; `None` says that they must be read one by one.

    Args:
        folder: The folder that the files lie in; None when their bytes come from elsewhere.
        converter: How the field is kept.
    """

    def __init__(self, folder: Path | None, converter: Converter) -> None:
        self.folder = folder
        self._converter = converter
        self._header = b""
        self._num_bytes = 0
        self._shapes: list[tuple[int, ...]] = []
        self._slots = FileSlots(b"", 0, 0)

    def read(self, files: Listed) -> FieldColumn | None:
        """The arrays of files of the folder, in memory that is used again for the next ones.

        Args:
            files: The files; the version of each is its time in nanoseconds.

        Returns:
            None when they are not uniform, or not as they were listed.
        """
        num_files, num_bytes = len(files), files.sizes[0]
        if self.folder is None or files.sizes.count(num_bytes) < num_files:
            return None
        if num_bytes != self._num_bytes and not self._learn(self._beginning(files), num_bytes):
            return None
        body_bytes = num_bytes - len(self._header)
        if not 0 < body_bytes <= _MAX_BODY_BYTES:
            return None
        if self._slots.file_bytes != num_bytes or self._slots.num_files < num_files:
            self._slots = FileSlots(self._header, body_bytes, num_files)
        versions = files.versions
        times = versions if isinstance(versions, Times) else Times(numbers(map(int, versions)))
        if not self._slots.read(self.folder, files.paths, times.times_ns):
            self._num_bytes = 0  # the next files may be like another one
            return None
        return FieldColumn(
            items=[*self._slots.bodies(num_files)],
            shapes=self._shapes * num_files,
            joined=self._slots.joined(num_files),
        )

    def parsed(self, contents: Sequence[Content]) -> FieldColumn | None:
        """The arrays of files whose bytes are given; None when they are not uniform."""
        first = contents[0]
        if isinstance(first, Unreadable):
            return None
        known = len(first) == self._num_bytes and first.startswith(self._header)
        if not known and not self._learn(first, len(first)):
            return None
        header, size, start = self._header, self._num_bytes, len(self._header)
        view: Callable[[bytes], Buffer] = memoryview if size > _VIEWED_BYTES else bytes
        items = [
            view(content)[start:]
            for content in contents
            if isinstance(content, bytes) and len(content) == size and content.startswith(header)
        ]
        if len(items) < len(contents):
            return None
        return FieldColumn(items=items, shapes=self._shapes * len(items))

    def _beginning(self, files: Listed) -> bytes:
        try:
            with open(f"{self.folder}/{files.paths[0]}", "rb", buffering=0) as file:
                return file.read(_BEGINNING_BYTES)
        except OSError:
            return b""

    def _learn(self, beginning: bytes, num_bytes: int) -> bool:
        """Learn the header of a file; whether it may speak for others."""
        self._num_bytes, self._slots = 0, FileSlots(b"", 0, 0)
        plain = plain_header(beginning, num_bytes)
        if plain is None or not self._converter.fits(plain[1]):
            return False
        (self._header, array), self._num_bytes = plain, num_bytes
        self._shapes = [array.shape] if self._converter.rule.info.ndim is not None else []
        return True


class FileSlots:
    """Room for some files of one size."""

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

    def read(self, folder: Path, paths: Sequence[str], times_ns: Sequence[int]) -> bool:
        """Read whole files, one open, fstat, read and close each.

        Returns:
            Whether each is there with its time and size, and begins with the header.
        """
        fstat, readv, close, size = os.fstat, os.readv, os.close, self.file_bytes
        within = os.open(folder, _FLAGS)
        try:
            for path, time_ns, room in zip(paths, times_ns, self._rooms, strict=False):
                handle = os.open(path, _FLAGS, dir_fd=within)
                try:
                    if fstat(handle).st_mtime_ns != time_ns or readv(handle, room) != size:
                        return False
                finally:
                    close(handle)
        except OSError:
            return False
        finally:
            close(within)
        return bool((self._headers[: len(paths)] == self._header).all())

    def bodies(self, num_files: int) -> list[memoryview]:
        """What lies behind the header of each of the first files, until more are read."""
        return self._bodies[:num_files]

    def joined(self, num_files: int) -> memoryview:
        """The same, one after the other."""
        return self._joined[: num_files * self._body_bytes]
