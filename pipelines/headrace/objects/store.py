"""Stores of source files and datasets: a folder, or an object store."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from headrace.errors import (
    DataError,
    StoreMissingError,
    UnreadableError,
    UserError,
    without_secrets,
)
from headrace.files.atomic import AS_USUAL, fsync, replacing, write_bytes
from headrace.files.checksums import copy_verified
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.manifest_file import FILE_NAME, no_dataset, parse_manifest
from headrace.objects.protocol import (
    ByteRange,
    Check,
    Store,
    StoredFile,
    Tick,
    changed,
    checked_path,
    gone,
    in_order,
)
from headrace.recipe.site import StoreOptions

_PACKAGES = {
    "s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub",
    "memory": "fsspec",
}  # fmt: skip
"""Schemes of object stores, and the class of each."""
_MAX_OPEN = 64
_PART_FILES = 256  # files that are listed and statted together
_NUM_THREADS = 8
_MAX_WAITING = 128  # parts that wait for their stats
_WAITS = 0.25  # share of stats with a wait, from which on threads pay

_Entries = list[tuple[str, "os.DirEntry[str]"]]
_EXTRAS = {"gcsfs": "gs", "adlfs": "az", "huggingface_hub": "hf"}


class LocalStore:
    """A folder of this machine; `~` stands for the user's home.

    `on_link` is called with the folder and a path in it for each link to a folder, each listed
    link, and each file of a `stat`; it may raise to refuse it. Then a folder that vanishes while it
    is listed is an error, too.
    """

    def __init__(self, folder: str, on_link: Callable[[Path, str], None] | None = None) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._on_link = on_link
        self.hidden = set[str]()  # paths whose names begin with a dot, of what was listed so far

    @property
    def url(self) -> str:
        return str(self.folder)

    def list_names(self, check: Check | None = None) -> Iterator[str]:
        for prefix, entries in self._scanned(check):
            yield from (prefix + entry.name for entry in entries)

    def list_files(
        self, check: Check | None = None, wanted: Callable[[str], object] = bool
    ) -> Iterator[StoredFile]:
        groups = (
            [found for entry in entries if wanted((found := (prefix + entry.name, entry))[0])]
            for prefix, entries in self._scanned(check)
        )
        return _statted(map(self._without_bad_links, groups))

    def stat(self, path: str) -> StoredFile | None:
        file = self._path(path)
        try:
            if not file.is_file():
                return None
            if self._on_link is not None:
                self._on_link(self.folder, path)
            return _stored(path, file.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with _open(self._path(path)) as file:
            file.seek(start)
            return file.read(-1 if end is None else max(end - start, 0))

    def read_files(self, files: Sequence[StoredFile]) -> Iterator[bytes | DataError]:
        prefix, fstat, read = f"{self.folder}/", os.fstat, os.read
        for path, _, version in files:
            try:
                handle = os.open(prefix + path, os.O_RDONLY | os.O_CLOEXEC)
            except PermissionError as error:
                yield UnreadableError(f"it cannot be read: {error.strerror}")
                continue
            except (FileNotFoundError, NotADirectoryError):
                yield gone(self.url, path)
                continue
            try:
                status = fstat(handle)
                content = read(handle, status.st_size)
                if (done := len(content)) != status.st_size:
                    content += self._range(handle, path, done, status.st_size - done)
            finally:
                os.close(handle)
            is_same = not version or str(status.st_mtime_ns) == version
            yield content if is_same else changed(self.url, path)

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        opened: dict[str, BinaryIO] = {}
        try:
            for path, version, start, num_bytes in ranges:
                if path not in opened:
                    if len(opened) == _MAX_OPEN:
                        opened.pop(next(iter(opened))).close()
                    opened[path] = self.open(path, version)
                yield self._range(opened[path].fileno(), path, start, num_bytes)
        finally:
            for file in opened.values():
                file.close()

    def open(self, path: str, version: str) -> BinaryIO:
        try:
            file = open(self._path(path), "rb")  # noqa: SIM115 the caller closes it
        except FileNotFoundError:
            raise gone(self.url, path) from None
        except PermissionError as error:
            raise DataError(f"{self.url}/{path} cannot be read", "Allow it.") from error
        if str(os.fstat(file.fileno()).st_mtime_ns) != version:
            file.close()
            raise changed(self.url, path)
        return file

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        source = self._path(path)
        if not source.is_file():
            raise _missing(source)
        return copy_verified(source, target, tick)[1]

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        target = self._path(path)
        with source.open("rb") as reader, replacing(target, AS_USUAL) as writer:
            shutil.copyfileobj(reader, writer, 4 * 2**20)
        fsync(target.parent)
        if tick is not None:
            tick(target.stat().st_size)

    def write(self, path: str, content: bytes) -> None:
        write_bytes(self._path(path), content, AS_USUAL)

    def delete(self, path: str) -> None:
        file = self._path(path)
        file.unlink(missing_ok=True)
        with suppress(OSError):  # the folder is not empty
            for folder in itertools.takewhile(self.folder.__ne__, file.parents):
                folder.rmdir()

    def _path(self, path: str) -> Path:
        return self.folder / checked_path(self.url, path)

    def _scanned(self, check: Check | None) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """Yield all files, groups of a folder at a time: the folder and their entries."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            try:
                entries = os.scandir(f"{self.folder}/{prefix}")
            except FileNotFoundError:  # no folder, no files, as with an S3 prefix
                if prefix and self._on_link is not None:
                    raise
                continue
            with entries:
                while some := list(itertools.islice(entries, _PART_FILES)):
                    if check is not None:
                        check()
                    yield prefix, [entry for entry in some if self._is_file(prefix, entry, waiting)]

    def _is_file(self, prefix: str, entry: os.DirEntry[str], waiting: list[str]) -> bool:
        """Whether an entry may be a file; a folder is added to the waiting ones."""
        if entry.name[0] == ".":
            self.hidden.add(prefix + entry.name)
            return False
        if not entry.is_dir():
            return True
        if not entry.is_symlink():
            waiting.append(f"{prefix}{entry.name}/")
        elif self._on_link is not None:
            self._on_link(self.folder, prefix + entry.name)
        return False

    def _without_bad_links(self, group: _Entries) -> _Entries:
        for path, entry in group:
            if self._on_link is not None and entry.is_symlink():
                self._on_link(self.folder, path)
        return [(path, entry) for path, entry in group if entry.is_file()]

    def _range(self, handle: int, path: str, start: int, num_bytes: int) -> bytes:
        content = b""
        while (missing := num_bytes - len(content)) > 0:
            more = os.pread(handle, missing, start + len(content))
            if not more:  # the file was truncated
                raise changed(self.url, path)
            content += more
        return content


def _statted(groups: Iterator[_Entries]) -> Iterator[StoredFile]:
    """Yield files with their stats, in order; by threads if stats wait for a server."""
    for group in groups:
        before = _num_waits()
        yield from _stats(group)
        if _num_waits() - before > _WAITS * len(group):
            break
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for files in in_order(pool, _stats, groups, _MAX_WAITING):
            yield from files


def _stats(group: _Entries) -> list[StoredFile]:
    return [_stored(path, entry.stat()) for path, entry in group]


def _num_waits() -> int:
    """Return how often this thread has waited for a server, a disk or another thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def is_remote(url: str) -> bool:
    """Whether a location is in an object store rather than in a folder."""
    return urlsplit(url).scheme in _PACKAGES and "://" in url


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """Return the store at a location, without connecting or checking it.

    `url` is `s3://bucket/prefix` or of another object store, `file:///folder` or a path.

    Raises:
        UserError: The URL has another scheme, names no bucket, or its package is not installed.
    """
    if "://" not in url:
        return LocalStore(url)
    parts = urlsplit(url)
    if without_secrets(url) != url:
        raise UserError(
            f"A URL of scheme {parts.scheme}:// holds credentials",
            "Give them in the environment (AWS_ACCESS_KEY_ID, ...) or a profile, never in a URL.",
        )
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalStore(unquote(parts.path))
    if parts.scheme in _PACKAGES and parts.netloc:
        return _object_store(url, parts.scheme, options or StoreOptions())
    what = "names no bucket" if parts.scheme in _PACKAGES else "cannot be opened as a store"
    raise UserError(
        f"'{url}' {what}",
        "Valid: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
        "hf://datasets/owner/name, file:///folder, or a path.",
    )


def below(url: str, *names: str) -> str:
    """Return the location of a path below another: `s3://bucket/a` and `b` give `s3://bucket/a/b`."""
    return "/".join((url.rstrip("/"), *names))


def check_package(url: str) -> None:
    """Raise a `UserError` with the extra to install if the package of a URL is missing here."""
    package = _PACKAGES.get(urlsplit(url).scheme)
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"'{url}' needs the package {package}, which is not installed",
            f"pip install 'headrace[{_EXTRAS[package]}]' here and on every node.",
        )


def read_manifest_at(location: str, options: StoreOptions | None = None) -> Manifest:
    """Read the manifest of a dataset at a folder or URL.

    Raises:
        ManifestError: There is none, it is damaged, or of a newer release.
        StoreError: The store cannot be read.
    """
    store = open_store(location, options)
    try:
        text = store.read(FILE_NAME)
    except StoreMissingError:
        raise no_dataset(location) from None
    return parse_manifest(text, f"{store.url}/{FILE_NAME}")


def missing_shards(
    location: str, options: StoreOptions | None, shards: Sequence[ShardInfo]
) -> list[ShardInfo]:
    """Return the shards of a dataset that are missing at its folder or URL, or of another size."""
    store = open_store(location, options)
    if store.folder is not None or len(shards) == 1:
        found = {shard.file: store.stat(shard.file) for shard in shards}
    else:  # one request for many
        found = {file.path: file for file in store.list_files()}
    pairs = ((shard, found.get(shard.file)) for shard in shards)
    return [each for each, file in pairs if file is None or file.num_bytes != each.num_bytes]


def _object_store(url: str, scheme: str, options: StoreOptions) -> Store:
    check_package(url)
    if scheme == "s3":
        from headrace.objects.s3 import S3Store

        return S3Store(url, options)
    from headrace.objects.fsspec_store import FsspecStore

    return FsspecStore(url, options)


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, str(status.st_mtime_ns))


def _missing(path: Path) -> StoreMissingError:
    return StoreMissingError(f"{path} does not exist")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise _missing(path) from None
