"""Where the files of a source lie: a store, or one file of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from posixpath import splitext
from typing import BinaryIO, TypeAlias, TypeVar

import pyarrow as pa

from headrace.errors import (
    DataError,
    RecipeError,
    StoreChangedError,
    StoreMissingError,
    UnreadableError,
)
from headrace.objects.protocol import ByteRange, Check, Store, StoredFile, as_listed
from headrace.objects.store import LocalStore
from headrace.packing.reading import reading
from headrace.packing.sample_table import SampleTable, by_path, columns_of

T = TypeVar("T")

HIDDEN = re.compile(
    r"(?:^|/)(?:(?:__MACOSX|@eaDir|\$RECYCLE\.BIN)/|(?:Thumbs\.db|desktop\.ini)$)"
)  # beside names with a dot

Content: TypeAlias = "bytes | UnreadableError"
"""Bytes of a whole file, or why there are none."""
Wanted = Callable[[str], object]
"""Whether a file counts, by its path."""


class SourceStore:
    """Files below one folder or prefix, or only one of them.

    Whatever reads raises a `DataError` for a file that vanished or changed since it was listed.
    """

    outer = ""
    """Pattern (RE2) of the container before the path of a file inside it."""

    def __init__(self, store: Store, only: str = "") -> None:
        self.store = store
        self.name = store.url
        """Folder or URL, for messages."""
        self.folder: Path | None = store.folder
        """The local folder in which samples are files; None for a URL."""
        self.only = only
        self.left_out = Counter[str]()
        """Files that `listed` has left out, by ending; `hidden` are those of systems."""

    def names(self, check: Check | None = None) -> Iterator[str]:
        """Paths of all files whose names begin with no dot, in any order."""
        if self.only:
            return (file.path for file in self._files(bool, check))
        return self._told(self.store.list_names(check))

    def listed(self, wanted: Wanted, check: Check | None = None) -> SampleTable:
        """The files of `names` that are wanted, by path.

        Raises:
            RecipeError: A folder is a link, a name is not UTF-8, or a link leaves the folder.
            DataError: Two files have the same path, as in a tar file.
        """
        self.left_out.clear()
        chosen = partial(self._is_chosen, wanted)
        found: Iterator[tuple[str, int, str | int]] = self._told(self._files(chosen, check))
        text = version = pa.large_string()
        if self.folder is not None:  # versions are times
            found, version = ((path, size, int(time)) for path, size, time in found), pa.int64()
        with utf8_names(self.name):
            columns = columns_of(found, text, pa.int64(), version)
        if isinstance(self.store, LocalStore):
            self.left_out["hidden"] += len(self.store.hidden)
        names = ("path", "bytes", "version")
        return by_path(SampleTable.of(**dict(zip(names, columns, strict=True))))

    def _is_chosen(self, wanted: Wanted, path: str) -> bool:
        """Whether a file counts; others are counted."""
        is_hidden = HIDDEN.search(path)
        if is_hidden or not wanted(path):
            ending = "hidden" if is_hidden else splitext(path)[1].lower()
            self.left_out[ending or "without an ending"] += 1
            return False
        return True

    def stat(self, path: str) -> StoredFile | None:
        """Return one file; None if it does not exist."""
        return self.store.stat(path)

    def unchanged(self, path: str, version: str) -> StoredFile:
        """A file that is as it was listed."""
        with _as_listed():
            return as_listed(self.store, path, version)

    def read(self, files: Sequence[StoredFile]) -> Iterator[Content]:
        """Bytes of whole files, in order."""
        with _as_listed():
            for content in self.store.read_files(files):
                if isinstance(content, DataError) and not isinstance(content, UnreadableError):
                    raise content
                yield content

    def read_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes]:
        """Bytes of parts of files, in order."""
        with _as_listed():
            yield from self.store.read_ranges(ranges)

    def open(self, path: str, version: str) -> BinaryIO:
        """A file to read and seek in."""
        reading(f"{self.name}/{path}")
        with _as_listed():
            return self.store.open(path, version)

    def _files(self, wanted: Wanted, check: Check | None) -> Iterator[StoredFile]:
        if not self.only:
            yield from self.store.list_files(check, wanted)
        elif wanted(self.only) and (file := self.store.stat(self.only)):
            yield file

    def _told(self, found: Iterator[T]) -> Iterator[T]:
        try:
            yield from found
        except OSError as error:
            raise DataError(
                f"{self.name}: '{error.filename}' cannot be listed: {error.strerror}",
                "See whether it may be read, and list again when nothing writes to the folder.",
            ) from error


@contextmanager
def _as_listed() -> Iterator[None]:
    try:
        yield
    except (StoreMissingError, StoreChangedError) as error:
        raise DataError(
            f"{error.what} since the source folder was listed",
            "Pack again when nothing writes to the source folder any more.",
        ) from error


def refuse_link(folder: Path, path: str) -> None:
    """Refuse a path that is a link to a folder, or leads out of the source's folder."""
    link = folder / path
    target = link.resolve()
    if target.is_dir():
        raise RecipeError(
            f"{link} is a link to the folder {target}",
            "Links to folders are not followed; copy the folder into the source folder, or "
            "set dataset.source to the real one.",
        )
    if not target.is_file():
        raise RecipeError(f"{link} is a link to {target}, which is no file")
    if not target.is_relative_to(folder.resolve()):
        raise RecipeError(
            f"{link} is a link that leaves the source folder, to {target}",
            "Copy the file into the source folder, or set dataset.source to the real folder.",
        )


@contextmanager
def utf8_names(place: str) -> Iterator[None]:
    """Refuse a name that is not UTF-8 where the block encodes it."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise RecipeError(
            f"The name of {error.object!r} in {place} is not UTF-8", "Rename the file."
        ) from None
