"""Where the files of a source lie: the protocol, and local folders (stores are in `remote`)."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from headrace.errors import DataError, RecipeError
from headrace.objects.protocol import StoredFile, in_order
from headrace.packing.samples import Content, Listed, Times, Unreadable, by_path, numbers

Wanted = Callable[[str], object]  # tells by its path whether a file counts
Check = Callable[[], None]  # called often; may raise to stop

_MAX_OPEN = 64
_PART_FILES = 256  # files that are listed and statted together
_NUM_THREADS = 8
_MAX_WAITING = 128  # parts that wait for their stats
_WAITS = 0.25  # share of stats that had to wait, from which on threads pay


class ByteRange(NamedTuple):
    """Consecutive bytes of a file that must still have its version."""

    path: str
    version: str
    start: int
    num_bytes: int


class SourcePlace(Protocol):
    """Files below one folder or prefix, or only one of them.

    Whatever reads raises `DataError` for a file that vanished or changed since it was listed.
    """

    @property
    def name(self) -> str:
        """Folder or URL, for messages."""

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a URL."""

    def inside(self, path: str) -> str:
        """The path of a file without the container that holds it."""

    def names(self, check: Check | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order."""

    def listed(self, wanted: Wanted, check: Check | None = None) -> Listed:
        """The files of `names` that are wanted, by path.

        Raises:
            RecipeError: A folder is a link, a name is not UTF-8, or a link leaves the folder.
        """

    def stat(self, path: str) -> StoredFile | None:
        """One file; None when there is no such file."""

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        """Bytes of whole files, in order."""

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        """Bytes of parts of files, in order."""

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in."""


class LocalPlace:
    """Files below a local folder, or only one of it."""

    def __init__(self, folder: Path, only: str = "") -> None:
        self.folder = folder
        self.name = str(folder)
        self._only = only

    def inside(self, path: str) -> str:
        return path

    def names(self, check: Check | None = None) -> Iterator[str]:
        with self._told():
            for prefix, entries in self._scanned(check):
                yield from (prefix + entry.name for entry in entries)

    def listed(self, wanted: Wanted, check: Check | None = None) -> Listed:
        paths: list[str] = []
        sizes, times_ns = numbers(()), numbers(())

        def found() -> Iterator[list[os.DirEntry[str]]]:
            for prefix, entries in self._scanned(check):
                chosen = [entry for entry in entries if wanted(prefix + entry.name)]
                for entry in chosen:
                    if entry.is_symlink():
                        self._check_link(prefix + entry.name)
                paths.extend([prefix + entry.name for entry in chosen])
                yield chosen

        with self._told():
            for status in _statted(found()):
                sizes.append(status.st_size)
                times_ns.append(status.st_mtime_ns)
        check_names(self.name, paths)
        return by_path(paths, sizes, Times(times_ns))

    def stat(self, path: str) -> StoredFile | None:
        target = self.folder / path
        if not target.is_file():
            return None
        self._check_link(path)
        status = target.stat()
        return StoredFile(path, status.st_size, str(status.st_mtime_ns))

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        prefix, fstat, read = f"{self.folder}/", os.fstat, os.read
        for path, num_bytes, version in files:
            try:
                handle = os.open(prefix + path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                yield self._not_opened(path, error)
                continue
            try:
                status = fstat(handle)
                if status.st_size != num_bytes or str(status.st_mtime_ns) != version:
                    raise changed(prefix + path, "was written to")
                content = read(handle, num_bytes)
                if (done := len(content)) != num_bytes:
                    rest = ByteRange(path, version, done, num_bytes - done)
                    content += self._range(handle, rest)
            finally:
                os.close(handle)
            yield content

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        opened: dict[str, BinaryIO] = {}
        try:
            for each in ranges:
                if each.path not in opened:
                    if len(opened) == _MAX_OPEN:
                        opened.pop(next(iter(opened))).close()
                    opened[each.path] = self.open(each.path, each.version)
                yield self._range(opened[each.path].fileno(), each)
        finally:
            for file in opened.values():
                file.close()

    def open(self, path: str, version: str) -> BinaryIO:
        name = f"{self.folder}/{path}"
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

    def _scanned(self, check: Check | None) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """All files, some of a folder at a time: the folder and their entries."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            with os.scandir(f"{self.folder}/{prefix}") as entries:
                while some := list(islice(entries, _PART_FILES)):
                    if check is not None:
                        check()
                    files = []
                    for entry in some:
                        if entry.name[0] == "." or self._only not in ("", entry.name):
                            continue
                        if entry.is_dir():
                            self._check_folder(prefix + entry.name, entry)
                            waiting.append(f"{prefix}{entry.name}/")
                        else:
                            files.append(entry)
                    yield prefix, files

    def _check_folder(self, path: str, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink():
            raise RecipeError(
                f"{self.folder / path} is a link to the folder {(self.folder / path).resolve()}",
                "Links to folders are not followed; copy the folder into the source folder, or "
                "set dataset.source to the real one.",
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

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self.folder}: '{error.filename}' cannot be listed: {error.strerror}",
                "See whether it may be read, and list again when nothing writes to the folder.",
            ) from error

    def _not_opened(self, path: str, error: OSError) -> Unreadable:
        if isinstance(error, PermissionError):
            return Unreadable(path, f"it may not be read: {error.strerror}")
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise changed(f"{self.folder}/{path}", "is gone") from None
        raise error

    def _range(self, handle: int, wanted: ByteRange) -> bytes:
        content = b""
        while (missing := wanted.num_bytes - len(content)) > 0:
            more = os.pread(handle, missing, wanted.start + len(content))
            if not more:
                raise changed(f"{self.folder}/{wanted.path}", "was cut")
            content += more
        return content


def _statted(found: Iterator[list[os.DirEntry[str]]]) -> Iterator[os.stat_result]:
    """Stats of files, in order; taken by threads once each waits for a server."""
    for entries in found:
        before = _num_waits()
        yield from _stats(entries)
        if _num_waits() - before > _WAITS * len(entries):
            break
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for stats in in_order(pool, _stats, found, _MAX_WAITING):
            yield from stats


def _stats(entries: list[os.DirEntry[str]]) -> list[os.stat_result]:
    return list(map(os.DirEntry.stat, entries))


def _num_waits() -> int:
    """How often this thread has waited for a server, a disk or another thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def check_names(place: str, paths: Sequence[str]) -> None:
    """Refuse a name that is not UTF-8."""
    joined = "\0".join(paths)
    try:
        joined.encode()
    except UnicodeEncodeError as error:
        bad = joined[joined.rfind("\0", 0, error.start) + 1 :].partition("\0")[0]
        raise RecipeError(
            f"The name of {bad!r} in {place} is not UTF-8", "Rename the file."
        ) from None


def unchanged(place: SourcePlace, path: str, version: str) -> StoredFile:
    """A file that is as it was listed; else a `DataError` is raised."""
    found = place.stat(path)
    if found is None:
        raise changed(f"{place.name}/{path}", "is gone")
    if found.version != version:
        raise changed(f"{place.name}/{path}", "was written to")
    return found


def changed(path: str, how: str) -> DataError:
    """The error for a source file that is not as it was listed."""
    return DataError(
        f"{path} {how} since the source folder was listed",
        "Pack again when nothing writes to the source folder any more.",
    )
