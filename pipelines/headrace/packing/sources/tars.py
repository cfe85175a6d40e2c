"""Members of tar files as if they were files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from headrace.errors import DataError
from headrace.objects.protocol import StoredFile
from headrace.packing.listed import Listed, columns_of
from headrace.packing.samples import Content
from headrace.packing.sources.files import containers, damaged
from headrace.packing.sources.place import ByteRange, Check, SourcePlace, Wanted, check_name

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


def members(place: SourcePlace, file: StoredFile, stream: BinaryIO) -> Iterator[Member]:
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
        place: Where the tar files lie; files beside them are read, too.
    """

    folder: Path | None = None

    def __init__(self, place: SourcePlace) -> None:
        self.name = place.name
        self.stat = place.stat
        self.open = place.open
        self.read_ranges = place.read_ranges
        self._place = place

    def inside(self, path: str) -> str:
        """Path of a member in its tar file."""
        return path[path.lower().index(".tar/") + len(".tar/") :]

    def names(self, check: Check | None = None) -> Iterator[str]:
        """Paths of all members."""
        return (file.path for file in self._members(bool, check))

    def listed(self, wanted: Wanted, check: Check | None = None) -> Listed:
        """The members that are wanted."""
        return columns_of(self._members(wanted, check))

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        """Bytes of members, in order."""
        return self._place.read_ranges([_range(file) for file in files])

    def _members(self, wanted: Wanted, check: Check | None) -> Iterator[StoredFile]:
        for file in containers(self._place, "tar", SUFFIXES, check):
            with self._place.open(file.path, file.version) as stream:
                for member in members(self._place, file, stream):
                    path = f"{file.path}/{member.path}"
                    if wanted(path):
                        version = f"{file.version}@{len(file.path)}@{member.start}"
                        yield StoredFile(path, member.num_bytes, version)
            if check is not None:
                check()


def _range(member: StoredFile) -> ByteRange:
    version, num_outer, start = member.version.rsplit("@", 2)
    return ByteRange(member.path[: int(num_outer)], version, int(start), member.num_bytes)
