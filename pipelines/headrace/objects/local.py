"""A folder as a store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from headrace.errors import DataError, StoreChangedError, StoreMissingError
from headrace.files.atomic import AS_USUAL, fsync_folder, replacing, write_bytes
from headrace.files.checksums import copy_verified
from headrace.objects.protocol import StoredFile, Tick, checked_path


class LocalStore:
    """A folder of this machine.

    Args:
        folder: Its path; `~` stands for the user's home.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser().absolute()

    @property
    def url(self) -> str:
        """Absolute path of the folder."""
        return str(self._folder)

    def list_files(self, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """All files below the folder; see `Store.list_files`."""
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
        """The file as it is now; see `Store.stat`."""
        file = self._path(path)
        try:
            return _stored(path, file.stat()) if file.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of a file; see `Store.read`."""
        with _open(self._path(path)) as file:
            file.seek(start)
            return file.read(-1 if end is None else max(end - start, 0))

    def read_many(
        self, paths: Sequence[str], versions: Sequence[str] | None = None
    ) -> list[bytes | DataError]:
        """Whole files; see `Store.read_many`."""
        wanted = versions or [""] * len(paths)
        return [self._read_one(path, version) for path, version in zip(paths, wanted, strict=True)]

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Copy a file out of the folder; see `Store.download`."""
        source = self._path(path)
        if not source.is_file():
            raise _missing(source)
        return copy_verified(source, target, tick)[1]

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        """Copy a file into the folder; see `Store.upload`."""
        target = self._path(path)
        with source.open("rb") as reader, replacing(target, AS_USUAL) as writer:
            shutil.copyfileobj(reader, writer, 4 * 2**20)
        fsync_folder(target.parent)
        if tick is not None:
            tick(target.stat().st_size)

    def write(self, path: str, content: bytes) -> None:
        """Replace a file; see `Store.write`."""
        write_bytes(self._path(path), content, AS_USUAL)

    def delete(self, path: str) -> None:
        """Remove a file; see `Store.delete`."""
        self._path(path).unlink(missing_ok=True)

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


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, str(status.st_mtime_ns))


def _missing(path: Path) -> StoreMissingError:
    return StoreMissingError(f"There is no file {path}")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise _missing(path) from None
