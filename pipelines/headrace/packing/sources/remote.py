"""Files of a source below a prefix of an object store."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from headrace.errors import DataError, StoreChangedError, StoreMissingError
from headrace.objects.protocol import Item, Store, StoredFile, in_order
from headrace.packing.samples import Content, Listed, columns_of
from headrace.packing.sources.place import ByteRange, Check, Wanted, changed, check_names, unchanged

_BATCH_FILES = 256
_BATCH_BYTES = 32 * 2**20
_JOINT_BYTES = 4 * 2**20
_GAP_BYTES = 64 * 2**10
_READ_AHEAD_BYTES = 4 * 2**20
_NUM_THREADS = 16

Joint = tuple[ByteRange, list[ByteRange]]
"""A range that covers neighbours, and these."""


class RemotePlace:
    """Files below a prefix, or only one of it; small ones are read many at once."""

    folder: Path | None = None

    def __init__(self, store: Store, only: str = "") -> None:
        self.name = store.url
        self._store = store
        self._only = only

    def inside(self, path: str) -> str:
        return path

    def names(self, check: Check | None = None) -> Iterator[str]:
        return (file.path for file in self._files(check))

    def listed(self, wanted: Wanted, check: Check | None = None) -> Listed:
        files = [file for file in self._files(check) if wanted(file.path)]
        check_names(self.name, [file.path for file in files])
        return columns_of(files)

    def stat(self, path: str) -> StoredFile | None:
        return self._store.stat(path)

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        """Bytes of whole files, in order.

        The next files are read while these are worked on; at most 64 MiB or two files are held.
        """
        groups = grouped(files, lambda file: file.num_bytes, _BATCH_FILES)
        with ThreadPoolExecutor(1) as pool:
            contents = chain.from_iterable(in_order(pool, self._read_many, groups, 2))
            for file, content in zip(files, contents, strict=True):
                if isinstance(content, DataError):
                    raise self._changed(file.path, content)
                yield content

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        """Bytes of parts of files, in order; neighbours are read at once, memory as in `read`."""
        for path, version in dict.fromkeys((each.path, each.version) for each in ranges):
            unchanged(self, path, version)
        groups = grouped(joints(ranges), lambda joint: joint[0].num_bytes, _NUM_THREADS)
        with ThreadPoolExecutor(_NUM_THREADS) as pool, ThreadPoolExecutor(1) as one_ahead:

            def read(group: Sequence[Joint]) -> list[tuple[Joint, bytes]]:
                contents = pool.map(self._range, [joint for joint, _ in group])
                return list(zip(group, contents, strict=True))

            for found in in_order(one_ahead, read, groups, 2):
                for (joint, members), content in found:
                    for each in members:
                        start = each.start - joint.start
                        yield content[start : start + each.num_bytes]

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in; pieces of 4 MiB are read ahead."""
        stream = _StoreStream(self._store, unchanged(self, path, version))
        return io.BufferedReader(cast("io.RawIOBase", stream), _READ_AHEAD_BYTES)

    def _files(self, check: Check | None) -> Iterator[StoredFile]:
        if not self._only:
            yield from self._store.list_files(check)
        elif file := self._store.stat(self._only):
            yield file

    def _read_many(self, files: Sequence[StoredFile]) -> list[bytes | DataError]:
        paths, versions = [file.path for file in files], [file.version for file in files]
        return self._store.read_many(paths, versions)

    def _range(self, wanted: ByteRange) -> bytes:
        end = wanted.start + wanted.num_bytes
        try:
            content = self._store.read(wanted.path, wanted.start, end)
        except StoreMissingError as error:
            raise self._changed(wanted.path, error) from error
        if len(content) != wanted.num_bytes:
            raise changed(f"{self.name}/{wanted.path}", "was cut")
        return content

    def _changed(self, path: str, error: DataError) -> DataError:
        how = {StoreMissingError: "is gone", StoreChangedError: "was written to"}.get(type(error))
        return changed(f"{self.name}/{path}", how) if how else error


class _StoreStream(io.RawIOBase):
    """A file of a store as a stream with a position."""

    def __init__(self, store: Store, file: StoredFile) -> None:
        self._store = store
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.num_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._file.num_bytes)
        if end <= self._at:
            return 0
        content = self._store.read(self._file.path, self._at, end)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def joints(ranges: Sequence[ByteRange]) -> Iterator[Joint]:
    """Ranges that cover the given ones in their order; neighbours share one, up to 4 MiB."""
    members: list[ByteRange] = []
    start = end = 0
    for each in ranges:
        same = bool(members) and members[0][:2] == each[:2]
        near = 0 <= each.start - end <= _GAP_BYTES
        if not (same and near and each.start + each.num_bytes - start <= _JOINT_BYTES):
            if members:
                yield ByteRange(*members[0][:2], start, end - start), members
            members, start = [], each.start
        members.append(each)
        end = each.start + each.num_bytes
    if members:
        yield ByteRange(*members[0][:2], start, end - start), members


def grouped(
    items: Iterable[Item], num_bytes: Callable[[Item], int], most: int
) -> Iterator[list[Item]]:
    """Consecutive items to read at once: `most`, or 32 MiB, or one that is larger."""
    group: list[Item] = []
    total = 0
    for item in items:
        size = num_bytes(item)
        if group and (len(group) == most or total + size > _BATCH_BYTES):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
