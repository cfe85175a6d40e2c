"""Where the files of a source lie: a local folder here, an S3 prefix in `remote`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from headrace.errors import DataError, RecipeError
from headrace.packing.samples import Unreadable
from headrace.storage.store import StoredFile

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_MAX_OPEN = 64

Wanted = Callable[[str], object]
"""Tells by its path whether a file counts."""


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

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""
        ...

    def read(self, files: Sequence[StoredFile]) -> Iterator[bytes | Unreadable]:
        """Bytes of whole files, in order.

        Raises:
            DataError: A file vanished or changed since it was listed.
        """
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
        self._only = only
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
        return (path for path, _ in self._entries(check))

    def walk(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """The files of `names` that are wanted."""
        name = self.name
        for path, entry in self._entries(check):
            if wanted(path):
                if not path.isascii():
                    check_name(name, path)
                if entry.is_symlink():
                    self._check_link(path)
                yield _stored(path, entry.stat())

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""
        target = self.folder / path
        if not target.is_file():
            return None
        self._check_link(path)
        return _stored(path, target.stat())

    def read(self, files: Sequence[StoredFile]) -> Iterator[bytes | Unreadable]:
        """Bytes of whole files, in order; one open, fstat, read and close a file."""
        prefix, fstat, read = self._prefix, os.fstat, os.read
        for file in files:
            try:
                handle = os.open(prefix + file.path, _FLAGS)
            except OSError as error:
                yield self._not_opened(file.path, error)
                continue
            try:
                status = fstat(handle)
                if status.st_size != file.num_bytes or str(status.st_mtime_ns) != file.version:
                    raise changed(prefix + file.path, "was written to")
                content = read(handle, file.num_bytes)
                if len(content) != file.num_bytes:
                    content += self._rest(handle, file, len(content))
            finally:
                os.close(handle)
            yield content

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

    def _entries(self, check: Callable[[], None] | None) -> Iterator[tuple[str, os.DirEntry[str]]]:
        waiting, only = [""], self._only
        while waiting:
            prefix = waiting.pop()
            if check is not None:
                check()
            with os.scandir(self._prefix + prefix) as entries:
                for entry in entries:
                    path = prefix + (name := entry.name)
                    if name[0] == "." or (only and path != only):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path + "/")
                    elif entry.is_symlink() and entry.is_dir():
                        raise self._link_to_folder(path)
                    else:
                        yield path, entry

    def _link_to_folder(self, path: str) -> RecipeError:
        target = (self.folder / path).resolve()
        return RecipeError(
            f"{self.folder / path} is a link to the folder {target}",
            "Links to folders are not followed; set dataset.source to the real folder.",
        )

    def _check_link(self, path: str) -> None:
        target = (self.folder / path).resolve()
        if not target.is_file():
            raise RecipeError(f"{self.folder / path} is a link to {target}, which is no file")
        if not target.is_relative_to(self.folder.resolve()):
            raise RecipeError(
                f"{self.folder / path} is a link that leaves the source folder, to {target}",
                "Copy the file into the source folder, or set dataset.source to the real folder.",
            )

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

    def _rest(self, handle: int, file: StoredFile, start: int) -> bytes:
        piece = Piece(file.path, file.version, start, file.num_bytes - start)
        return self._piece(handle, piece)


def changed(path: str, how: str) -> DataError:
    """The error for a source file that is not as it was listed."""
    return DataError(
        f"{path} {how} since the source folder was listed",
        "Pack again when nothing writes to the source folder any more.",
    )


def check_name(place: str, path: str) -> None:
    """Refuse a name that is not UTF-8.

    Raises:
        RecipeError: It is not.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            f"The name of {path!r} in {place} is not UTF-8", "Rename the file."
        ) from None


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, str(status.st_mtime_ns))
