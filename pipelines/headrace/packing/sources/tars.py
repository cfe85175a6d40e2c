"""Tar files: their members as if they were files."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from headrace.errors import DataError
from headrace.objects.protocol import ByteRange, Check, StoredFile
from headrace.packing.sources.files import containers, damaged
from headrace.packing.sources.source_store import Content, SourceStore, Wanted, utf8_names

_BLOCK_BYTES = 512
_NUM_AHEAD = 1024  # headers that are looked at together
_AT_END_BYTES = 2**20
_PLAIN_NAME = re.compile(rb"[^/.\0][^/\0]*(?:/[^/.\0][^/\0]*)*")
_PLAIN_SIZE = re.compile(rb"[0-7]{11}[\0 ]")
_NAME_BYTES, _SIZE, _CHECKSUM, _KIND, _PREFIX = 100, 124, 148, 156, 345  # places in a header


class Member(NamedTuple):
    """A file in a tar file."""

    path: str
    start: int
    """Where its bytes begin in the tar file."""
    num_bytes: int


def members(place: SourceStore, file: StoredFile, stream: BinaryIO) -> Iterator[Member]:
    """Files of a tar file in their order, but no folders and no names that begin with a dot."""
    name, last = f"{place.name}/{file.path}", "its beginning"
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # all would stay in memory
                found = _member(name, info)
                last = f"'{info.name}'"
                if found is not None:
                    yield found
                if not archive.pax_headers:  # else these may say more of each member
                    plain, archive.offset = _plain_members(stream, archive.offset)
                    yield from plain
                    last = f"'{plain[-1].path}'" if plain else last
            end = archive.offset
    except (tarfile.TarError, ValueError) as error:
        raise damaged(name, "tar", f"{error}, behind {last}") from error
    stream.seek(end)
    if stream.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):  # tarfile takes any other block for it
        raise damaged(name, "tar", f"it is cut, or has a broken header, behind {last}")
    while more := stream.read(_AT_END_BYTES):
        if more.strip(b"\0"):
            raise DataError(
                f"{name} goes on behind its end: the files there would be left out",
                "Join tar files by `tar --concatenate`, in place of `cat`.",
            )


def _plain_members(stream: BinaryIO, offset: int) -> tuple[list[Member], int]:
    """Return files whose own headers say all, which tarfile takes ten times as long for.

    They are those at an offset, up to the first of another kind, or some of them; also returns the
    offset of the next header.
    """
    headers: list[bytes] = []
    found: list[Member] = []
    at = offset
    while len(found) < _NUM_AHEAD:
        stream.seek(at)
        header = stream.read(_BLOCK_BYTES)
        name, size = header[:_NAME_BYTES].rstrip(b"\0"), header[_SIZE : _SIZE + 12]
        is_plain = _PLAIN_NAME.fullmatch(name) and _PLAIN_SIZE.fullmatch(size) and name.isascii()
        if not is_plain or len(header) < _BLOCK_BYTES:
            break
        num_bytes = int(size[:-1], 8)
        headers.append(header)
        found.append(Member(name.decode(), at + _BLOCK_BYTES, num_bytes))
        at += _BLOCK_BYTES + -(-num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    num_plain = _num_plain(headers)
    if num_plain < len(found):
        at = found[num_plain].start - _BLOCK_BYTES
    return found[:num_plain], at


def _num_plain(headers: Sequence[bytes]) -> int:
    """How many of the first headers are whole, and those of plain files with short names."""
    table = np.frombuffer(b"".join(headers), dtype=np.uint8).reshape(-1, _BLOCK_BYTES)
    stored = table[:, _CHECKSUM : _CHECKSUM + 8]
    sums = table.sum(axis=1, dtype=np.int64) - stored.sum(axis=1, dtype=np.int64) + 8 * ord(" ")
    digits = stored[:, :6].astype(np.int64) - ord("0")
    right = ((digits >= 0) & (digits < 8)).all(axis=1) & (digits @ 8 ** np.arange(6)[::-1] == sums)
    right &= stored[:, 6] & 0xDF == 0  # zero or a space, as tarfile asks for
    plain = right & (table[:, _KIND] == ord("0")) & (table[:, _PREFIX] == 0)
    return len(plain) if plain.all() else int(plain.argmin())


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
    with utf8_names(name):
        str(path).encode()
    return Member(str(path), info.offset_data, info.size)


class TarStore(SourceStore):
    """The members of all tar files of a source; `a.tar/cat/1.png` is one.

    The version of a member is that of the tar file and where its bytes begin.
    """

    outer = r"(?i:.*?\.tar/)"

    def __init__(self, source: SourceStore) -> None:
        super().__init__(source.store)
        self.folder = None
        self._source = source

    def names(self, check: Check | None = None) -> Iterator[str]:
        return (file.path for file in self._files(bool, check))

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        return self.read_ranges([_range(file) for file in files])

    def _files(self, wanted: Wanted, check: Check | None) -> Iterator[StoredFile]:
        for file in containers(self._source, "tar", check):
            with self.open(file.path, file.version) as stream:
                for member in members(self._source, file, stream):
                    path = f"{file.path}/{member.path}"
                    if wanted(path):
                        version = f"{file.version}@{len(file.path)}@{member.start}"
                        yield StoredFile(path, member.num_bytes, version)
            if check is not None:
                check()


def _range(member: StoredFile) -> ByteRange:
    version, num_outer, start = member.version.rsplit("@", 2)
    return ByteRange(member.path[: int(num_outer)], version, int(start), member.num_bytes)
