"""Where files of sources and datasets lie: a folder, or an object store."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from headrace.errors import (
    DataError,
    StoreChangedError,
    StoreMissingError,
    UserError,
    without_secrets,
)
from headrace.files.atomic import AS_USUAL, fsync_folder, replacing, write_bytes
from headrace.files.checksums import copy_verified
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import FILE_NAME, no_dataset, parse_manifest
from headrace.objects.protocol import Store, StoredFile, Tick, checked_path
from headrace.recipe.site import StoreOptions

_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
    "memory": "fsspec",
}
"""Schemes of object stores, and what opens each."""
_EXTRAS = {"gcsfs": "gs", "adlfs": "az", "huggingface_hub": "hf"}


class LocalStore:
    """A folder of this machine.

    Args:
        folder: Its path; `~` stands for the user's home.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser().absolute()

    @property
    def url(self) -> str:
        return str(self._folder)

    def list_files(self, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            if check is not None:
                check()
            try:
                entries = os.scandir(self._folder / prefix)
            except FileNotFoundError:  # no folder, no files, as with an S3 prefix
                continue
            with entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{prefix}{entry.name}/")
                    elif entry.is_file():
                        yield _stored(prefix + entry.name, entry.stat())

    def stat(self, path: str) -> StoredFile | None:
        file = self._path(path)
        try:
            return _stored(path, file.stat()) if file.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with _open(self._path(path)) as file:
            file.seek(start)
            return file.read(-1 if end is None else max(end - start, 0))

    def read_many(
        self, paths: Sequence[str], versions: Sequence[str] | None = None
    ) -> list[bytes | DataError]:
        wanted = versions or [""] * len(paths)
        return [self._read_one(path, version) for path, version in zip(paths, wanted, strict=True)]

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        source = self._path(path)
        if not source.is_file():
            raise _missing(source)
        return copy_verified(source, target, tick)[1]

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        target = self._path(path)
        with source.open("rb") as reader, replacing(target, AS_USUAL) as writer:
            shutil.copyfileobj(reader, writer, 4 * 2**20)
        fsync_folder(target.parent)
        if tick is not None:
            tick(target.stat().st_size)

    def write(self, path: str, content: bytes) -> None:
        write_bytes(self._path(path), content, AS_USUAL)

    def delete(self, path: str) -> None:
        file = self._path(path)
        file.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            for folder in itertools.takewhile(self._folder.__ne__, file.parents):
                folder.rmdir()

    def _path(self, path: str) -> Path:
        return self._folder / checked_path(self.url, path)

    def _read_one(self, path: str, version: str) -> bytes | DataError:
        try:
            with _open(self._path(path)) as file:
                content = file.read()
                found = _stored(path, os.fstat(file.fileno())).version
        except StoreMissingError as error:
            return error
        if version and found != version:
            return StoreChangedError(f"{self.url}/{path} has changed since it was listed")
        return content


def is_remote(url: str) -> bool:
    """Whether a location is in an object store rather than in a folder."""
    return urlsplit(url).scheme in _PACKAGES and "://" in url


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """The store at a location; nothing is connected or checked yet.

    Args:
        url: `s3://bucket/prefix` or of another object store, `file:///folder` or a path.
        options: How to reach an object store; defaults when None.

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
    """Location of something below a location: `s3://bucket/a` and `b` give `s3://bucket/a/b`."""
    return "/".join((url.rstrip("/"), *names))


def check_package(url: str) -> None:
    """Refuse the URL of an object store whose Python package is not installed here.

    Raises:
        UserError: It is not; names the extra that brings it.
    """
    package = _PACKAGES.get(urlsplit(url).scheme)
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"'{url}' needs the package {package}, which is not installed",
            f"pip install 'headrace[{_EXTRAS[package]}]' here and on every node.",
        )


def read_manifest_at(location: str, options: StoreOptions | None = None) -> Manifest:
    """Read the manifest of a dataset at a folder or URL.

    Raises:
        ManifestError: There is none, it is damaged, or a newer release wrote it.
        StoreError: The store cannot be read.
    """
    store = open_store(location, options)
    try:
        text = store.read(FILE_NAME)
    except StoreMissingError:
        raise no_dataset(location) from None
    return parse_manifest(text, f"{store.url}/{FILE_NAME}")


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
    return StoreMissingError(f"There is no file {path}")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise _missing(path) from None
