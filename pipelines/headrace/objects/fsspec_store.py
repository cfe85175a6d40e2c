"""A prefix of an object store as fsspec opens it: one implementation for all its schemes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec
from fsspec.spec import AbstractBufferedFile

from headrace.errors import (
    DataError,
    HeadraceError,
    StoreAccessError,
    StoreError,
    StoreMissingError,
    without_secrets,
)
from headrace.files.checksums import write_verified
from headrace.objects.protocol import (
    ByteRange,
    Check,
    Item,
    StoredFile,
    Tick,
    as_listed,
    changed,
    checked_path,
    gone,
    in_order,
)
from headrace.recipe.site import StoreOptions

PIECE_BYTES = 8 * 2**20
_PIECES_AHEAD = 12  # times the pieces' size, the memory of one download: 96 MiB
_LOOK_S = 1.0

_GROUP_FILES = 256
_GROUP_RANGES = 16
_GROUP_BYTES = 32 * 2**20
_JOINT_BYTES = 4 * 2**20
_GAP_BYTES = 64 * 2**10
READ_AHEAD_BYTES = 4 * 2**20
"""Bytes per read of an open file."""

Joint = tuple[ByteRange, list[ByteRange]]
"""A range that covers neighbours, and these neighbours."""

_VERSIONS = ("ETag", "etag", "e_tag", "generation", "blob_id", "last_modified", "mtime", "created")
"""File systems' names for a value that changes with the content, the best first."""


class Piece(NamedTuple):
    """Bytes of a file."""

    content: bytes
    version: str = ""
    """Version of their file; empty if the answer lacks it."""


class Connection(NamedTuple):
    """Connection of a process to one server; safe to share by threads."""

    files: Any
    pool: ThreadPoolExecutor
    """Runs concurrent calls; tasks in it must not submit further ones."""


_connections: dict[tuple[int, str, StoreOptions], Connection] = {}
"""By process, because neither sockets nor threads survive a fork."""


class Sent(fsspec.Callback):  # type: ignore[misc]
    """Counts the bytes of an upload in the sending threads, and can stop it there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.position = 0
        self._reported = 0

    def restart(self) -> None:
        self.position = 0
        self.relative_update(0)

    def relative_update(self, inc: int = 1) -> None:
        if self.is_stopped:
            raise InterruptedError("the upload was stopped")
        self.position += inc

    def counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.relative_update(len(chunk))
            yield chunk

    def tell(self, tick: Tick | None) -> None:
        """Report the bytes since the last call; repeated ones count once."""
        new = max(self.position - self._reported, 0)
        self._reported += new
        if tick is not None:
            tick(new)


class FsspecStore:
    """A prefix of an object store; the part of its URL after the bucket is taken literally."""

    folder: Path | None = None

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url = url.rstrip("/")
        self._scheme, _, self._root = self._url.partition("://")
        self._options = options

    @property
    def url(self) -> str:
        return self._url

    def list_names(self, check: Check | None = None) -> Iterator[str]:
        return (file.path for file in self.list_files(check))

    def list_files(
        self, check: Check | None = None, wanted: Callable[[str], object] = bool
    ) -> Iterator[StoredFile]:
        skipped = len(self._root) + 1
        pages = self._pages()
        while True:
            if check is not None:
                check()
            with self._errors(None):
                page = next(pages, None)
            if page is None:
                return
            for about in page:
                path = about["name"].lstrip("/")[skipped:]
                if path and path[-1] != "/" and "/." not in f"/{path}" and wanted(path):
                    yield _stored(path, about)

    def stat(self, path: str) -> StoredFile | None:
        try:
            with self._errors(path) as where:
                about = self._files().info(where)
        except StoreMissingError:
            return None
        return _stored(path, about) if about["type"] == "file" else None

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            self._existing(path)
            return b""
        return self._get(path, start, end).content

    def read_files(self, files: Sequence[StoredFile]) -> Iterator[bytes | DataError]:
        groups = grouped(files, lambda file: file.num_bytes, _GROUP_FILES)
        with ThreadPoolExecutor(1) as one_ahead:
            for contents in in_order(one_ahead, self._read_group, groups, 2):
                yield from contents

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        for path, version in dict.fromkeys((each.path, each.version) for each in ranges):
            as_listed(self, path, version)
        groups = grouped(joints(ranges), lambda joint: joint[0].num_bytes, _GROUP_RANGES)
        with ThreadPoolExecutor(_GROUP_RANGES) as pool, ThreadPoolExecutor(1) as one_ahead:

            def read(group: Sequence[Joint]) -> list[tuple[Joint, bytes]]:
                contents = pool.map(self._range, [joint for joint, _ in group])
                return list(zip(group, contents, strict=True))

            for found in in_order(one_ahead, read, groups, 2):
                for (joint, members), content in found:
                    for each in members:
                        start = each.start - joint.start
                        yield content[start : start + each.num_bytes]

    def open(self, path: str, version: str) -> BinaryIO:
        return io.BufferedReader(_Stream(self, as_listed(self, path, version)), READ_AHEAD_BYTES)

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        return write_verified(self._pieces(self._existing(path), tick), target, tick)[1]

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        sent = Sent()
        task = self._connection().pool.submit(self._put, source, path, sent)
        try:
            while not wait([task], timeout=_LOOK_S).done:
                sent.tell(tick)
        except BaseException:
            sent.is_stopped = True
            wait([task])
            raise
        task.result()
        sent.tell(tick)

    def write(self, path: str, content: bytes) -> None:
        with self._errors(path) as where:
            self._files().pipe_file(where, content)

    def delete(self, path: str) -> None:
        with suppress(StoreMissingError), self._errors(path) as where:
            self._files().rm_file(where)

    def _open(self) -> Any:
        more: dict[str, Any] = {}
        if self._options.anonymous:
            more = {"token": "anon"} if self._scheme == "gs" else {"anon": True}
        more |= {"skip_instance_cache": True, "use_listings_cache": False}
        return fsspec.filesystem(self._scheme, **more)

    def _pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield fsspec's data of the files below the prefix, by folder or page."""
        try:
            for _, _, files in self._files().walk(self._root, detail=True, on_error="raise"):
                yield list(files.values())
        except FileNotFoundError:  # no prefix, no files
            return

    def _get(self, path: str, start: int = 0, end: int | None = None) -> Piece:
        is_whole = start == 0 and end is None
        with self._errors(path) as where:
            try:
                span: dict[str, Any] = {} if is_whole else {"start": start, "end": end}
                content = self._files().cat_file(where, **span)
            except EOFError:  # starts behind the end
                return Piece(b"")
        if end is not None and len(content) > end - start:  # the server ignored the range
            content = content[start:end]
        return Piece(content)

    def _put(self, source: Path, path: str, sent: Sent, **more: Any) -> None:
        sent.restart()
        with self._errors(path) as where:
            self._files().put_file(str(source), where, callback=sent, **more)

    def _existing(self, path: str) -> StoredFile:
        found = self.stat(path)
        if found is None:
            raise StoreMissingError(f"{self._url}/{path} does not exist")
        return found

    def _pieces(self, found: StoredFile, tick: Tick | None, start: int = 0) -> Iterator[memoryview]:
        unknown: list[str] = []

        def read(start: int) -> memoryview:
            end = min(start + PIECE_BYTES, found.num_bytes)
            is_whole = end - start == found.num_bytes
            content, version = self._get(found.path, start, None if is_whole else end)
            unknown.extend([] if version else [found.path])
            if len(content) != end - start or version not in ("", found.version):
                raise changed(self._url, found.path)
            return memoryview(content)

        starts = range(start, found.num_bytes, PIECE_BYTES)
        look = None if tick is None else partial(tick, 0)
        yield from in_order(self._connection().pool, read, starts, _PIECES_AHEAD, look)
        if unknown and self._existing(found.path) != found:
            raise changed(self._url, found.path)

    def _read_group(self, group: Sequence[StoredFile]) -> list[bytes | DataError]:
        step = self._options.connections  # each takes every step-th file: fewer tasks
        shares = [group[start::step] for start in range(min(step, len(group)))]
        found: list[bytes | DataError] = [b""] * len(group)
        parts = in_order(self._connection().pool, self._read_share, shares, step + 1)
        for start, part in enumerate(parts):
            found[start::step] = part
        return found

    def _read_share(self, files: Sequence[StoredFile]) -> list[bytes | DataError]:
        return [self._read_one(file.path, file.version) for file in files]

    def _read_one(self, path: str, version: str) -> bytes | DataError:
        try:
            content, found = self._get(path)
            if version and not found:  # content was read first: an unchanged version covers it
                found = self._existing(path).version
        except StoreMissingError:
            return gone(self._url, path)
        return content if version in ("", found) else changed(self._url, path)

    def _range(self, wanted: ByteRange) -> bytes:
        try:
            content = self.read(wanted.path, wanted.start, wanted.start + wanted.num_bytes)
        except StoreMissingError:
            raise gone(self._url, wanted.path) from None
        if len(content) != wanted.num_bytes:
            raise changed(self._url, wanted.path)
        return content

    def _files(self) -> Any:
        return self._connection().files

    def _connection(self) -> Connection:
        key = self._key()
        found = _connections.get(key)
        if found is None:  # two threads may both connect; the first connection stays
            pool = ThreadPoolExecutor(self._options.connections, f"headrace-{self._scheme}")
            found = _connections.setdefault(key, Connection(files=self._open(), pool=pool))
        return found

    def _key(self) -> tuple[int, str, StoreOptions]:
        return os.getpid(), self._scheme, self._options

    @contextmanager
    def _errors(self, path: str | None) -> Iterator[str]:
        """Yield fsspec's name of a file, and raise this project's errors about it."""
        url = self._url if path is None else f"{self._url}/{checked_path(self._url, path)}"
        try:
            yield url.partition("://")[2]
        except (StoreAccessError, PermissionError) as error:
            _connections.pop(self._key(), None)  # so that new credentials need no restart
            if isinstance(error, StoreAccessError):
                raise
            raise StoreAccessError(f"The server refuses access to {url}: {error}") from error
        except HeadraceError:
            raise
        except FileNotFoundError as error:
            raise StoreMissingError(f"{url} does not exist") from error
        except Exception as error:
            reason = without_secrets(f"{type(error).__name__}: {error}")
            raise StoreError(f"{url} failed with: {reason}", "Run again.") from error


def _stored(path: str, about: Mapping[str, Any]) -> StoredFile:
    version = next((about[name] for name in _VERSIONS if about.get(name)), "")
    if isinstance(version, datetime):  # listings give it as a number
        version = version.timestamp()
    return StoredFile(path, about["size"], str(version).strip('"'))


class _Stream(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a store as a stream with a position; each read is a request."""

    def __init__(self, store: FsspecStore, file: StoredFile) -> None:
        super().__init__(store, file.path, cache_type="none", size=file.num_bytes)

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.read(self.path, start, min(end, self.size))
        return content


def joints(ranges: Sequence[ByteRange]) -> Iterator[Joint]:
    """Yield ranges that cover the given ones in their order; neighbours share one, up to 4 MiB."""
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
    """Yield consecutive items to read at once: `most`, or 32 MiB, or one that is larger."""
    group: list[Item] = []
    total = 0
    for item in items:
        size = num_bytes(item)
        if group and (len(group) == most or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
