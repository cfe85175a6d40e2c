"""Where the files of a source lie: a local folder here, an S3 prefix in `remote`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from headrace.errors import DataError
from headrace.packing.listed import Listed
from headrace.packing.samples import FileBlock, Unreadable
from headrace.packing.slots import FLAGS
from headrace.packing.sources.file_blocks import FolderBlock, cuts
from headrace.packing.sources.tree import Tree, Wanted
from headrace.storage.store import StoredFile

_MAX_OPEN = 64


FileRow = tuple[str, int, str]
"""Path, bytes and version of a file, as in `StoredFile`."""


class Piece(NamedTuple):
    """Consecutive bytes of a file."""

    path: str
    """The file."""
    version: str
    """Version it must still have."""
    start: int
    """First byte."""
    num_bytes: int
    """How many."""


class Place(Protocol):
    """Files below one folder or prefix, or only one of them."""

    @property
    def name(self) -> str:
        """Folder or URL, for messages."""
        ...

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a URL."""
        ...

    def inside(self, path: str) -> str:
        """The path of a file without the container that holds it."""
        ...

    def names(self, check: Callable[[], None] | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order.

        Raises:
            RecipeError: A folder is a link, or a name is not UTF-8.
        """
        ...

    def walk(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """The files of `names` that are wanted.

        Raises:
            RecipeError: As `names`, or a link leaves the folder.
        """
        ...

    def listed(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `walk` as samples of one file each, by path."""
        ...

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""
        ...

    def read(self, files: Sequence[FileRow]) -> Iterator[bytes | Unreadable]:
        """Bytes of whole files, in order.

        Args:
            files: Path, bytes and version of each.

        Raises:
            DataError: A file vanished or changed since it was listed.
        """
        ...

    def blocks(self, files: Listed) -> Iterator[FileBlock]:
        """The same files, in blocks."""
        ...

    def read_pieces(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Bytes of parts of files, in order.

        Raises:
            DataError: A file vanished or changed since it was listed.
        """
        ...

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in.

        Raises:
            DataError: The file vanished or changed since it was listed.
        """
        ...


class LocalPlace:
    """Files below a local folder.

    Args:
        folder: The folder.
        only: The one file of it that counts; empty for all.
    """

    def __init__(self, folder: Path, only: str = "") -> None:
        self.folder = folder
        self._tree = Tree(folder, only)
        self._prefix = f"{folder}/"

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def inside(self, path: str) -> str:
        """The path itself."""
        return path

    def names(self, check: Callable[[], None] | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order."""
        return self._tree.names(check)

    def walk(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """The files of `names` that are wanted."""
        for paths, sizes, times_ns in self._tree.parts(wanted, check):
            yield from map(StoredFile, paths, sizes, map(str, times_ns))

    def listed(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `walk` as samples of one file each, by path."""
        return self._tree.files(wanted, check)

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""
        target = self.folder / path
        if not target.is_file():
            return None
        self._tree.check_link(path)
        return _stored(path, target.stat())

    def read(self, files: Sequence[FileRow]) -> Iterator[bytes | Unreadable]:
        """Bytes of whole files, in order; one open, fstat, read and close a file."""
        prefix, fstat, read = self._prefix, os.fstat, os.read
        for path, num_bytes, version in files:
            try:
                handle = os.open(prefix + path, FLAGS)
            except OSError as error:
                yield self._not_opened(path, error)
                continue
            try:
                status = fstat(handle)
                if status.st_size != num_bytes or str(status.st_mtime_ns) != version:
                    raise changed(prefix + path, "was written to")
                content = read(handle, num_bytes)
                if (done := len(content)) != num_bytes:
                    rest = Piece(path, version, done, num_bytes - done)
                    content += self._piece(handle, rest)
            finally:
                os.close(handle)
            yield content

    def blocks(self, files: Listed) -> Iterator[FileBlock]:
        """The same files, in blocks."""
        for start, stop in cuts(files.sizes):
            part = files[start:stop]
            yield FolderBlock(part, partial(self.read, part.files()), self.folder)

    def read_pieces(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Bytes of parts of files, in order; at most 64 files are open at once."""
        opened: dict[str, BinaryIO] = {}
        try:
            for piece in pieces:
                if piece.path not in opened:
                    if len(opened) == _MAX_OPEN:
                        opened.pop(next(iter(opened))).close()
                    opened[piece.path] = self.open(piece.path, piece.version)
                yield self._piece(opened[piece.path].fileno(), piece)
        finally:
            for file in opened.values():
                file.close()

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in."""
        name = self._prefix + path
        try:
            file = open(name, "rb")  # noqa: SIM115 the caller closes it
        except FileNotFoundError:
            raise changed(name, "is gone") from None
        except PermissionError as error:
            raise DataError(f"{name} may not be read", "Correct its permissions.") from error
        if str(os.fstat(file.fileno()).st_mtime_ns) != version:
            file.close()
            raise changed(name, "was written to")
        return file

    def _not_opened(self, path: str, error: OSError) -> Unreadable:
        if isinstance(error, PermissionError):
            return Unreadable(path, f"it may not be read: {error.strerror}")
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise changed(self._prefix + path, "is gone") from None
        raise error

    def _piece(self, handle: int, piece: Piece) -> bytes:
        content = os.pread(handle, piece.num_bytes, piece.start)
        while len(content) < piece.num_bytes:
            more = os.pread(handle, piece.num_bytes - len(content), piece.start + len(content))
            if not more:
                raise changed(self._prefix + piece.path, "was cut")
            content += more
        return content


def changed(path: str, how: str) -> DataError:
    """The error for a source file that is not as it was listed."""
    return DataError(
        f"{path} {how} since the source folder was listed",
        "Pack again when nothing writes to the source folder any more.",
    )


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, str(status.st_mtime_ns))
