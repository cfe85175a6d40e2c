"""What folders and object stores offer: one protocol, for sources as for datasets."""

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
"""Called with the bytes moved since the last call; may raise to stop."""

Check = Callable[[], None]
"""Called often; may raise to stop."""

_LOOK_S = 1.0


class StoredFile(NamedTuple):
    """A file as a store lists it."""

    path: str
    """Path relative to the store's URL, with `/`."""
    num_bytes: int
    version: str
    """Changes with the content: time of change in nanoseconds as text, the ETag or its like."""


class ByteRange(NamedTuple):
    """Consecutive bytes of a file that must still have its version."""

    path: str
    version: str
    start: int
    num_bytes: int


class Store(Protocol):
    """A folder or a prefix of an object store.

    Instances are light, may be shared by threads, cross forks and pickles, and hold no connection
    before their first use in a process.

    Errors of all methods: `StoreAccessError` (a user error: credentials, permissions, bucket),
    `StoreError` (still failing after several attempts), `DataError` for a path that leads out of
    the store. Local stores raise `OSError` for what is wrong with the file system.
    """

    @property
    def url(self) -> str:
        """`s3://bucket/prefix` or an absolute path, without a slash at the end."""

    @property
    def folder(self) -> Path | None:
        """The local folder; None for an object store."""

    def list_names(self, check: Check | None = None) -> Iterator[str]:
        """Paths of all files below the URL, in any order; `check` as in `list_files`."""

    def list_files(
        self, check: Check | None = None, wanted: Callable[[str], object] = bool
    ) -> Iterator[StoredFile]:
        """The files below the URL whose paths are `wanted`, in any order.

        Names with a part that begins with a dot are left out; links to folders are not followed.
        `check` is called for every page, or some files of a folder.
        """

    def stat(self, path: str) -> StoredFile | None:
        """The file as it is now; None when there is none."""

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `[start, end)` of a file, cut at its end.

        Raises:
            StoreMissingError: There is no such file.
        """

    def read_files(self, files: Sequence[StoredFile]) -> Iterator[bytes | DataError]:
        """Contents of whole files, in order; the next are read while one is worked on.

        At most 64 MiB are held, or two files.

        Returns:
            Of each file its content, a `StoreMissingError`, a `StoreChangedError` for one that has
            not its version (an empty one is not compared), or an `UnreadableError` for a local one
            that may not be read.
        """

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        """Bytes of parts of files, in order; neighbours are read at once. Errors as `open`."""

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in.

        Raises:
            StoreMissingError: It is gone.
            StoreChangedError: It has another version.
        """

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Copy a file into a local one; large ones by several ranged reads at once.

        Args:
            path: The file.
            target: File to create or overwrite; none is left by a download that fails.
            tick: Called with the bytes of every piece that was read, by one thread at a time.

        Returns:
            XXH3 of the content, 128 bits, hexadecimal.

        Raises:
            StoreMissingError: There is no such file.
            StoreChangedError: It changed during the download.
            OSError: `target` cannot be written, as with a full disk.
        """

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        """Copy a local file into the store; readers see the old or the whole new file.

        `tick` is called with the bytes that were sent since the last call, about every second.
        """

    def write(self, path: str, content: bytes) -> None:
        """Replace a file by `content`; readers see the old or the new one, never a part."""

    def delete(self, path: str) -> None:
        """Remove a file, and folders that it leaves empty; no error when there is none."""


def checked_path(url: str, path: str) -> str:
    """A path inside a store, as it is; a `DataError` for one that leads out of it."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise DataError(
            f"'{path}' is no path inside {url}",
            "Paths are relative, with '/' between their parts and without '..'.",
        )
    return path


def gone(url: str, path: str) -> StoreMissingError:
    """The error for a listed file that is not there any more."""
    return StoreMissingError(f"{url}/{path} is gone")


def changed(url: str, path: str) -> StoreChangedError:
    """The error for a file that has not the version that was listed."""
    return StoreChangedError(f"{url}/{path} was written to")


def as_listed(store: Store, path: str, version: str) -> StoredFile:
    """A file that has its version still; errors as `Store.open`."""
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
    """Results of a function in the order of its items, `ahead` of them under way or waiting.

    When it ends early, by an error or because nobody asks for more, what has begun is waited for.
    `look` is called every second while a result is waited for, and may raise to stop.
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
