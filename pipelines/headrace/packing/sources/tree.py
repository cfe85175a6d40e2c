"""The files below a local folder.

Where looking at a file takes a round trip to a server, as on NFS and Lustre, threads do it, so that
several are on the way at once. Elsewhere one thread is faster: Python lets only one work.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import compress, islice
from pathlib import Path

from headrace.errors import RecipeError
from headrace.packing.listed import Listed, by_path

Wanted = Callable[[str], object]
"""Tells by its path whether a file counts."""

Part = tuple[list[str], list[int], list[str]]
"""Paths, bytes and versions of some files."""
_Look = Callable[[str, Sequence[os.DirEntry[str]]], Part]

_NUM_THREADS = 8
_PART_FILES = 256  # files a thread looks at before it takes others
_MAX_WAITING = 128  # parts that are looked at, and folders that are open, at once
_WAITS = 0.25  # share of the files that had to be waited for, from which on threads pay


class Tree:
    """A folder and all below.

    Args:
        folder: The folder.
        only: The one file of it that counts; empty for all.
    """

    def __init__(self, folder: Path, only: str = "") -> None:
        self._folder = folder
        self._only = only

    def names(self, check: Callable[[], None] | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order.

        Raises:
            RecipeError: A folder is a link.
        """
        for prefix, folder, parts in self._folders(check):
            try:
                for entries in parts:
                    yield from (prefix + entry.name for entry in entries)
            finally:
                os.close(folder)

    def files(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `names` that are wanted, by path.

        Raises:
            RecipeError: A folder is a link, a name is not UTF-8, or a link leaves the folder.
        """
        paths: list[str] = []
        sizes: list[int] = []
        versions: list[str] = []
        for part in self.parts(wanted, check):
            paths += part[0]
            sizes += part[1]
            versions += part[2]
        return by_path(paths, sizes, versions)

    def parts(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[Part]:
        """The files of `names` that are wanted, some at a time, as they are found.

        Raises:
            RecipeError: As `files`.
        """
        look = partial(self._look, wanted)
        with _Looks() as looks:
            for prefix, folder, parts in self._folders(check):
                try:
                    for entries in parts:
                        yield from looks.add(look, prefix, entries)
                finally:
                    looks.close(folder)
            yield from looks.rest()

    def check_link(self, path: str) -> None:
        """Refuse a link that leads to no file of the folder.

        Raises:
            RecipeError: It does.
        """
        target = (self._folder / path).resolve()
        if not target.is_file():
            raise RecipeError(f"{self._folder / path} is a link to {target}, which is no file")
        if not target.is_relative_to(self._folder.resolve()):
            raise RecipeError(
                f"{self._folder / path} is a link that leaves the source folder, to {target}",
                "Copy the file into the source folder, or set dataset.source to the real folder.",
            )

    def _folders(
        self, check: Callable[[], None] | None
    ) -> Iterator[tuple[str, int, Iterator[list[os.DirEntry[str]]]]]:
        """By folder: its path with a slash, its descriptor, to be closed, and its files."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            folder = os.open(f"{self._folder}/{prefix}", os.O_RDONLY | os.O_CLOEXEC)
            yield prefix, folder, self._entries(prefix, folder, waiting, check)

    def _entries(
        self, prefix: str, folder: int, waiting: list[str], check: Callable[[], None] | None
    ) -> Iterator[list[os.DirEntry[str]]]:
        """Files of a folder; the folders in it are added to those waiting."""
        with os.scandir(folder) as entries:
            while some := list(islice(entries, _PART_FILES)):
                if check is not None:
                    check()
                seen = [entry for entry in some if entry.name[0] != "."]
                if self._only:
                    seen = [entry for entry in seen if prefix + entry.name == self._only]
                files = [entry for entry in seen if not entry.is_dir(follow_symlinks=False)]
                for entry in files:
                    if entry.is_symlink() and entry.is_dir():
                        raise self._link_to_folder(prefix + entry.name)
                if len(files) < len(seen):
                    folders = (entry for entry in seen if entry.is_dir(follow_symlinks=False))
                    waiting += [f"{prefix}{entry.name}/" for entry in folders]
                yield files

    def _look(self, wanted: Wanted, prefix: str, entries: Sequence[os.DirEntry[str]]) -> Part:
        """Paths, bytes and versions of the files that are wanted."""
        paths = [prefix + entry.name for entry in entries]
        counts = list(map(bool, map(wanted, paths)))
        found = list(compress(entries, counts))
        paths = list(compress(paths, counts))
        if not "".join(paths).isascii():
            for path in paths:
                check_name(str(self._folder), path)
        for entry in found:
            if entry.is_symlink():
                self.check_link(prefix + entry.name)
        stats = [entry.stat() for entry in found]
        versions = [str(status.st_mtime_ns) for status in stats]
        return paths, [status.st_size for status in stats], versions

    def _link_to_folder(self, path: str) -> RecipeError:
        target = (self._folder / path).resolve()
        return RecipeError(
            f"{self._folder / path} is a link to the folder {target}",
            "Links to folders are not followed; set dataset.source to the real folder.",
        )


def check_name(place: str, path: str) -> None:
    """Refuse a name that is not UTF-8.

    Raises:
        RecipeError: It is not.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            f"The name of {path!r} in {place} is not UTF-8", "Rename the file."
        ) from None


class _Looks:
    """Looks at files: by threads from where on it turns out to take long."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[Part] | int] = deque()

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for each in self._waiting:
            if isinstance(each, int):
                os.close(each)

    def add(self, look: _Look, prefix: str, entries: Sequence[os.DirEntry[str]]) -> Iterator[Part]:
        """Look at files of a folder; those that were looked at come out in order."""
        if self._pool is None:
            before = _num_waits()
            part = look(prefix, entries)
            if _num_waits() - before > _WAITS * len(entries):
                self._pool = ThreadPoolExecutor(_NUM_THREADS)
            yield part
            return
        self._waiting.append(self._pool.submit(look, prefix, entries))
        while len(self._waiting) > _MAX_WAITING:
            yield from self._next()

    def close(self, folder: int) -> None:
        """Close a folder once its files were looked at."""
        if self._waiting:
            self._waiting.append(folder)
        else:
            os.close(folder)

    def rest(self) -> Iterator[Part]:
        """What is left."""
        while self._waiting:
            yield from self._next()

    def _next(self) -> Iterator[Part]:
        first = self._waiting.popleft()
        if isinstance(first, int):
            os.close(first)
        else:
            yield first.result()


def _num_waits() -> int:
    """How often this thread has waited for a server, a disk or another thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
