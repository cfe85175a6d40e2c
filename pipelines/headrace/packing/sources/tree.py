"""The files below a local folder: one thread reads the folders, several look at the files.

Where looking at a file takes a round trip to a server, as on NFS and Lustre, that many are on the
way at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.errors import RecipeError
from headrace.packing.listed import Listed, by_path

Wanted = Callable[[str], object]
"""Tells by its path whether a file counts."""

_Part = tuple[list[str], list[int], list[str]]

_NUM_THREADS = 8
_PART_FILES = 1024  # files a thread looks at before it takes others
_MAX_FOLDERS = 64  # folders that are open at once


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
        for prefix, folder, entries in self._folders(check):
            os.close(folder)
            yield from (prefix + entry.name for entry in entries)

    def files(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `names` that are wanted, by path.

        Raises:
            RecipeError: A folder is a link, a name is not UTF-8, or a link leaves the folder.
        """
        columns: _Part = ([], [], [])
        waiting: deque[tuple[int, list[Future[_Part]]]] = deque()
        pool = ThreadPoolExecutor(_NUM_THREADS)
        try:
            for prefix, folder, entries in self._folders(check):
                parts = range(0, len(entries), _PART_FILES)
                look = [
                    pool.submit(self._look, prefix, entries[start : start + _PART_FILES], wanted)
                    for start in parts
                ]
                waiting.append((folder, look))
                if len(waiting) == _MAX_FOLDERS:
                    _take(columns, waiting)
            while waiting:
                _take(columns, waiting)
        finally:
            pool.shutdown(cancel_futures=True)
            for folder, _ in waiting:
                os.close(folder)
        return by_path(*columns)

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
    ) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
        """By folder: its path with a slash, its descriptor, to be closed, and its files."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            if check is not None:
                check()
            folder = os.open(f"{self._folder}/{prefix}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                files, folders = self._entries(prefix, folder)
            except BaseException:
                os.close(folder)
                raise
            waiting += [f"{prefix}{name}/" for name in folders]
            yield prefix, folder, files

    def _entries(self, prefix: str, folder: int) -> tuple[list[os.DirEntry[str]], list[str]]:
        with os.scandir(folder) as entries:
            seen = [entry for entry in entries if entry.name[0] != "."]
        if self._only:
            seen = [entry for entry in seen if prefix + entry.name == self._only]
        files = [entry for entry in seen if not entry.is_dir(follow_symlinks=False)]
        for entry in files:
            if entry.is_symlink() and entry.is_dir():
                raise self._link_to_folder(prefix + entry.name)
        if len(files) == len(seen):
            return files, []
        return files, [entry.name for entry in seen if entry.is_dir(follow_symlinks=False)]

    def _look(self, prefix: str, entries: Sequence[os.DirEntry[str]], wanted: Wanted) -> _Part:
        """Paths, bytes and versions of the files that are wanted."""
        found = [entry for entry in entries if wanted(prefix + entry.name)]
        paths = [prefix + entry.name for entry in found]
        for path in paths:
            if not path.isascii():
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


def _take(columns: _Part, waiting: deque[tuple[int, list[Future[_Part]]]]) -> None:
    """Add what was found in the first of the folders, and close it."""
    for future in waiting[0][1]:
        paths, sizes, versions = future.result()
        columns[0].extend(paths)
        columns[1].extend(sizes)
        columns[2].extend(versions)
    os.close(waiting.popleft()[0])
