"""The files below a local folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress, islice
from pathlib import Path

from headrace.errors import DataError, RecipeError
from headrace.packing.listed import Listed, Times, by_path, numbers
from headrace.packing.sources.stat_scanner import Files, Part, StatScanner

Wanted = Callable[[str], object]
"""Tells by its path whether a file counts."""

_Entries = Generator[list[os.DirEntry[str]], None, None]
_PART_FILES = 256  # files whose stats are taken before others are listed


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
            DataError: A folder may not be read, or vanished meanwhile.
        """
        with self._told():
            for prefix, folder, parts in self._folders(check):
                try:
                    for entries in parts:
                        yield from (prefix + entry.name for entry in entries)
                finally:
                    parts.close()
                    os.close(folder)

    def files(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Listed:
        """The files of `names` that are wanted, by path.

        Raises:
            RecipeError: A folder is a link, a name is not UTF-8, or a link leaves the folder.
            DataError: A folder may not be read, or something vanished meanwhile.
        """
        paths: list[str] = []
        sizes, times_ns = numbers(()), numbers(())
        for part in self.parts(wanted, check):
            paths += part[0]
            sizes.extend(part[1])
            times_ns.extend(part[2])
        return by_path(paths, sizes, Times(times_ns))

    def parts(self, wanted: Wanted, check: Callable[[], None] | None = None) -> Iterator[Part]:
        """The files of `names` that are wanted, some at a time, as they are found.

        Raises:
            RecipeError: As `files`.
            DataError: As `files`.
        """
        with self._told(), StatScanner() as scanner:
            for prefix, folder, parts in self._folders(check):
                try:
                    for entries in parts:
                        yield from scanner.add(self._wanted(wanted, prefix, entries))
                finally:
                    parts.close()
                    scanner.close(folder)
            yield from scanner.rest()

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

    def _folders(self, check: Callable[[], None] | None) -> Iterator[tuple[str, int, _Entries]]:
        """By folder: its path with a slash, its descriptor, to be closed, and its files."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            folder = os.open(f"{self._folder}/{prefix}", os.O_RDONLY | os.O_CLOEXEC)
            yield prefix, folder, self._entries(prefix, folder, waiting, check)

    def _entries(
        self, prefix: str, folder: int, waiting: list[str], check: Callable[[], None] | None
    ) -> _Entries:
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

    def _wanted(self, wanted: Wanted, prefix: str, entries: Sequence[os.DirEntry[str]]) -> Files:
        """The files of a folder that are wanted."""
        paths = [prefix + entry.name for entry in entries]
        counts = list(map(wanted, paths))
        found = list(compress(entries, counts))
        paths = list(compress(paths, counts))
        if not "".join(paths).isascii():
            for path in paths:
                check_name(str(self._folder), path)
        for entry in found:
            if entry.is_symlink():
                self.check_link(prefix + entry.name)
        return Files(paths, found)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell in the user's words what cannot be listed."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self._folder}: '{error.filename}' cannot be listed: {error.strerror}",
                "See whether it may be read, and list again when nothing writes to the folder.",
            ) from error

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
