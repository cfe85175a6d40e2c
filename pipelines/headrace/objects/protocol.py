"""The interface of folders and object stores, for sources and datasets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from headrace.errors import DataError, StoreChangedError, StoreMissingError

Item = TypeVar("Item")
Result = TypeVar("Result")

Tick = Callable[[int], None]
"""Called with the bytes since the last call; may raise to stop."""

Check = Callable[[], None]
"""Called often; may raise to stop."""

_LOOK_S = 1.0


class StoredFile(NamedTuple):
    """A file in a store's listing."""

    path: str
    """Path relative to the store's URL, with `/`."""
    num_bytes: int
    version: str
    """Changes with the content: time of change in nanoseconds as text, the ETag or similar."""


class ByteRange(NamedTuple):
    """Consecutive bytes of a file that must still have its version."""

    path: str
    version: str
    start: int
    num_bytes: int


class Store(Protocol):
    """A folder or a prefix of an object store.

    Instances are small, can be shared by threads, survive forks and pickling, and connect only at
    their first use in a process.

    Errors of all methods: `StoreAccessError` (a user error: credentials, permissions, bucket),
    `StoreError` (several attempts failed), `DataError` for a path that leads out of the store.
    Local stores raise `OSError` for errors of the file system.
    """

    @property
    def url(self) -> str:
        """`s3://bucket/prefix` or an absolute path, without a slash at the end."""

    @property
    def folder(self) -> Path | None:
        """The local folder; None for an object store."""

    def list_names(self, check: Check | None = None) -> Iterator[str]:
        """Return the paths of all files below the URL, in any order; `check` as in `list_files`."""

    def list_files(
        self, check: Check | None = None, wanted: Callable[[str], object] = bool
    ) -> Iterator[StoredFile]:
        """Return the files below the URL whose paths are `wanted`, in any order.

        Names with a part that begins with a dot are left out; links to folders are not followed.
        `check` is called for every page, or group of files of a folder.
        """

    def stat(self, path: str) -> StoredFile | None:
        """Return the current state of a file; None if there is none."""

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes `[start, end)` of a file, cut at its end; or a `StoreMissingError`."""

    def read_files(self, files: Sequence[StoredFile]) -> Iterator[bytes | DataError]:
        """Yield contents of whole files, in order; the next are read while one is in use.

        At most 64 MiB are held, or two files.

        Returns:
            For each file its content, a `StoreMissingError`, a `StoreChangedError` if it has
            another version (an empty version is not compared), or an `UnreadableError` for a local
            file without permission.
        """

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        """Yield parts of files, in order; neighbours are read at once. Errors as `open`."""

    def open(self, path: str, version: str) -> BinaryIO:
        """Return a file to read and seek in; or a `StoreMissingError` or `StoreChangedError`."""

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Copy a file to a local one; large files by several ranged reads at once.

        Returns the XXH3 of the content, 128 bits, hexadecimal. `target` is made or overwritten; a
        download that fails leaves none. `tick` gets the bytes of a piece, by one thread at a time.

        Raises:
            StoreMissingError: The file does not exist.
            StoreChangedError: It changed during the download.
            OSError: `target` cannot be written, for example because the disk is full.
        """

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        """Copy a local file into the store; readers get the complete old or new file.

        `tick` is called with the bytes since the last call, about every second.
        """

    def write(self, path: str, content: bytes) -> None:
        """Replace a file by `content`; readers get the complete old or new file."""

    def delete(self, path: str) -> None:
        """Remove a file, and folders that become empty; no error if there is none."""


def checked_path(url: str, path: str) -> str:
    """Return a path inside a store; raise `DataError` if it leads out of the store."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise DataError(
            f"'{path}' is not a path inside {url}",
            "Paths are relative, with '/' between their parts and without '..'.",
        )
    return path


def gone(url: str, path: str) -> StoreMissingError:
    """Return the error for a listed file that was removed."""
    return StoreMissingError(f"{url}/{path} is gone")


def changed(url: str, path: str) -> StoreChangedError:
    """Return the error for a file whose version differs from the listed one."""
    return StoreChangedError(f"{url}/{path} was written to")


def as_listed(store: Store, path: str, version: str) -> StoredFile:
    """Return a file if it still has its version; errors as `Store.open`."""
    found = store.stat(path)
    if found is None:
        raise gone(store.url, path)
    if found.version != version:
        raise changed(store.url, path)
    return found


def in_order(
    pool: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    ahead: int,
    look: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """Yield results of a function in the order of its items, with `ahead` of them in progress.

    At an early end, by an error or by the caller, items in progress are waited for. `look` is
    called every second while a result is waited for, and may raise to stop.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= ahead:
                yield _result(waiting.popleft(), look)
        while waiting:
            yield _result(waiting.popleft(), look)
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)


def _result(future: Future[Result], look: Callable[[], None] | None) -> Result:
    while look is not None and not wait([future], timeout=_LOOK_S).done:
        look()
    return future.result()
