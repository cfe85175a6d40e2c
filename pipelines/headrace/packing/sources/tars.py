"""Members of tar files as if they were files."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from headrace.errors import DataError
from headrace.packing.listed import Listed, columns_of
from headrace.packing.samples import FileBlock, Unreadable
from headrace.packing.sources.containers import containers, damaged
from headrace.packing.sources.file_blocks import given_blocks
from headrace.packing.sources.place import (
    FileRow,
    Piece,
    Place,
)
from headrace.packing.sources.tree import Wanted, check_name
from headrace.storage.store import StoredFile

SUFFIXES = (".tar",)
"""Endings of tar files; compressed ones cannot be read at any place."""

_BLOCK_BYTES = 512


class Member(NamedTuple):
    """A file in a tar file."""

    path: str
    """Path in the tar file."""
    start: int
    """Where its bytes begin in the tar file."""
    num_bytes: int
    """How many they are."""


def members(place: Place, file: StoredFile, stream: BinaryIO) -> Iterator[Member]:
    """Files of a tar file in their order; folders and names that begin with a dot are left out.

    Args:
        place: Where the tar file lies.
        file: The tar file.
        stream: The tar file, opened.

    Raises:
        DataError: It is damaged or cut, or holds links, devices, or paths that lead out of it.
    """
    name = f"{place.name}/{file.path}"
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # all would stay in memory
                found = _member(name, info)
                if found is not None:
                    yield found
            end = archive.offset
    except (tarfile.TarError, ValueError) as error:
        raise damaged(name, "tar", error) from error
    stream.seek(end)
    if stream.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):  # tarfile takes any other block for it
        raise damaged(name, "tar", "it is cut, or has a broken header")


def _member(name: str, info: tarfile.TarInfo) -> Member | None:
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{name} holds '{info.name}', a path that leads out of it",
            "Write the tar file again, with paths that begin with no '/' and hold no '..'.",
        )
    if info.isdir() or any(part.startswith(".") for part in path.parts):
        return None
    if not info.isreg() or info.issparse():
        kind = "a link" if info.issym() or info.islnk() else "no plain file"
        raise DataError(
            f"{name} holds '{info.name}', which is {kind}",
            "Write the tar file again with the files themselves (tar --dereference "
            "--hard-dereference).",
        )
    check_name(name, str(path))
    return Member(str(path), info.offset_data, info.size)


class TarPlace:
    """The members of all tar files at a place; `a.tar/cat/1.png` is one.

    The version of a member is that of the tar file and where its bytes begin.

    Args:
        place: Where the tar files lie.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def name(self) -> str:
        """Folder or URL, for messages."""
        return self._place.name

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a URL."""
        return self._place.folder

    def inside(self, path: str) -> str:
        """Path of a member in its tar file."""
        return path[path.lower().index(".tar/") + len(".tar/") :]

    def names(self, check: Callable[[], None] | None = None) -> Iterator[str]:
        """Paths of all members."""
        return (file.path for file in self.walk(bool, check))

    def walk(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """The members that are wanted."""
        for file in containers(self._place, "tar", SUFFIXES, check):
            with self._place.open(file.path, file.version) as stream:
                for member in members(self._place, file, stream):
                    path = f"{file.path}/{member.path}"
                    if wanted(path):
                        version = f"{file.version}@{len(file.path)}@{member.start}"
                        yield StoredFile(path, member.num_bytes, version)
            if check is not None:
                check()

    def listed(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The members of `walk` as samples of one file each, by path."""
        return columns_of(self.walk(wanted, check))

    def stat(self, path: str) -> StoredFile | None:
        """A file beside the tar files."""
        return self._place.stat(path)

    def read(self, files: Sequence[FileRow]) -> Iterator[bytes | Unreadable]:
        """Bytes of members, in order."""
        return self._place.read_pieces([_piece(file) for file in files])

    def blocks(self, files: Listed) -> Iterator[FileBlock]:
        """The same files, in blocks."""
        return given_blocks(files, self.read(files.files()))

    def read_pieces(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Parts of files beside the tar files."""
        return self._place.read_pieces(pieces)

    def open(self, path: str, version: str) -> BinaryIO:
        """A file beside the tar files."""
        return self._place.open(path, version)


def _piece(file: FileRow) -> Piece:
    path, num_bytes, told = file
    version, num_outer, start = told.rsplit("@", 2)
    return Piece(path[: int(num_outer)], version, int(start), num_bytes)
