"""Files of a source below an S3 prefix."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from headrace.errors import DataError, StoreChangedError, StoreMissingError
from headrace.packing.listed import Listed, columns_of
from headrace.packing.samples import FileBlock, Unreadable
from headrace.packing.sources.file_blocks import given_blocks
from headrace.packing.sources.place import FileRow, Piece, changed
from headrace.packing.sources.tree import Wanted, check_name
from headrace.storage.store import Store, StoredFile

_BATCH_FILES = 256
_BATCH_BYTES = 32 * 2**20
_JOINT_BYTES = 4 * 2**20
_GAP_BYTES = 64 * 2**10
_READ_AHEAD_BYTES = 4 * 2**20
_NUM_THREADS = 16


class RemotePlace:
    """Files below an S3 prefix; small ones are read many at once.

    Args:
        store: The prefix.
        only: The one file of it that counts; empty for all.
    """

    folder: Path | None = None

    def __init__(self, store: Store, only: str = "") -> None:
        self.store = store
        self._only = only

    @property
    def name(self) -> str:
        """The URL."""
        return self.store.url

    def inside(self, path: str) -> str:
        """The path itself."""
        return path

    def names(self, check: Callable[[], None] | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order."""
        return (file.path for file in self._files(check))

    def walk(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """The files of `names` that are wanted."""
        for file in self._files(check):
            if wanted(file.path):
                check_name(self.name, file.path)
                yield file

    def listed(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `walk` as samples of one file each, by path."""
        return columns_of(self.walk(wanted, check))

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""
        return self.store.stat(path)

    def read(self, files: Sequence[FileRow]) -> Iterator[bytes | Unreadable]:
        """Bytes of whole files, in order.

        The next files are read while these are worked on; at most 64 MiB or two files are held.
        """
        groups = list(batches(files))
        for group, contents in zip(groups, _one_ahead(self._read_many, groups), strict=True):
            for (path, _, _), content in zip(group, contents, strict=True):
                if isinstance(content, DataError):
                    raise self._changed(path, content)
                yield content

    def blocks(self, files: Listed) -> Iterator[FileBlock]:
        """The same files, in blocks."""
        return given_blocks(files, self.read(files.files()))

    def read_pieces(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Bytes of parts of files, in order; neighbours are read at once, memory as in `read`."""
        for path, version in dict.fromkeys((piece.path, piece.version) for piece in pieces):
            self._check(path, version)
        groups = list(_together(joints(pieces)))
        with ThreadPoolExecutor(_NUM_THREADS) as pool:

            def read_group(group: Sequence[Joint]) -> list[bytes]:
                return list(pool.map(self._piece, [joint for joint, _ in group]))

            for group, contents in zip(groups, _one_ahead(read_group, groups), strict=True):
                for (joint, members), content in zip(group, contents, strict=True):
                    for piece in members:
                        start = piece.start - joint.start
                        yield content[start : start + piece.num_bytes]

    def _read_many(self, files: Sequence[FileRow]) -> list[bytes | DataError]:
        return self.store.read_many([file[0] for file in files], [file[2] for file in files])

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in; pieces of 4 MiB are read ahead."""
        file = self._check(path, version)
        return io.BufferedReader(cast("io.RawIOBase", _Remote(self.store, file)), _READ_AHEAD_BYTES)

    def _files(self, check: Callable[[], None] | None) -> Iterator[StoredFile]:
        if not self._only:
            yield from self.store.list_files(check)
        elif file := self.store.stat(self._only):
            yield file

    def _piece(self, piece: Piece) -> bytes:
        end = piece.start + piece.num_bytes
        try:
            content = self.store.read(piece.path, piece.start, end)
        except StoreMissingError as error:
            raise self._changed(piece.path, error) from error
        if len(content) != piece.num_bytes:
            raise changed(f"{self.name}/{piece.path}", "was cut")
        return content

    def _check(self, path: str, version: str) -> StoredFile:
        found = self.stat(path)
        if found is None:
            raise changed(f"{self.name}/{path}", "is gone")
        if found.version != version:
            raise changed(f"{self.name}/{path}", "was written to")
        return found

    def _changed(self, path: str, error: DataError) -> DataError:
        how = {StoreMissingError: "is gone", StoreChangedError: "was written to"}.get(type(error))
        return changed(f"{self.name}/{path}", how) if how else error


class _Remote(io.RawIOBase):
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


T = TypeVar("T")
R = TypeVar("R")


def _one_ahead(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Results of a function in order; the next one is made while one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[R] | None = None
        for item in items:
            following = pool.submit(function, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


Joint = tuple[Piece, list[Piece]]
"""A piece that covers neighbours, and these."""


def joints(pieces: Sequence[Piece]) -> Iterator[Joint]:
    """Pieces that cover the given ones in their order; neighbours share one, up to 4 MiB."""
    members: list[Piece] = []
    start = end = 0
    for piece in pieces:
        same = bool(members) and members[0][:2] == piece[:2]
        near = 0 <= piece.start - end <= _GAP_BYTES
        if not (same and near and piece.start + piece.num_bytes - start <= _JOINT_BYTES):
            if members:
                yield Piece(*members[0][:2], start, end - start), members
            members, start = [], piece.start
        members.append(piece)
        end = piece.start + piece.num_bytes
    if members:
        yield Piece(*members[0][:2], start, end - start), members


def _together(found: Iterable[Joint]) -> Iterator[list[Joint]]:
    """Pieces to read at once: 16, or 32 MiB, or one that is larger."""
    group: list[Joint] = []
    num_bytes = 0
    for joint, members in found:
        too_many = num_bytes + joint.num_bytes > _BATCH_BYTES or len(group) == _NUM_THREADS
        if group and too_many:
            yield group
            group, num_bytes = [], 0
        group.append((joint, members))
        num_bytes += joint.num_bytes
    if group:
        yield group


def batches(files: Sequence[FileRow]) -> Iterator[Sequence[FileRow]]:
    """Consecutive files that may be read at once."""
    start = num_bytes = 0
    for index, (_, size, _) in enumerate(files):
        full = index - start == _BATCH_FILES or num_bytes + size > _BATCH_BYTES
        if full and index > start:
            yield files[start:index]
            start, num_bytes = index, 0
        num_bytes += size
    if files:
        yield files[start:]
