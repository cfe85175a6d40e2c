"""Locations of a split's shards: its folder, another folder, or a remote store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.errors import ShardError, StorageFullError
from headrace.files.checksums import file_xxh3_128
from headrace.files.machine import free_bytes
from headrace.files.manifest import ShardInfo
from headrace.objects.protocol import Store
from headrace.objects.store import is_remote, open_store
from headrace.recipe.site import StoreOptions
from headrace.shards.scratch import SCRATCH, Downloads, ShardScratch

DEFAULT_ROOM = 4
"""Default number of a store's shards that are held at once."""


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """Source of shards that are not in the dataset's folder: one of the first two."""

    folder: Path | None = None
    """A folder that every process of the node can map."""
    open: Callable[[Sequence[ShardInfo]], Downloads] | None = None
    """Opens, in each process, a downloader of a split's shards, for the time they are read."""
    room: int | None = DEFAULT_ROOM
    """Shards held at once by each process, at most; null: there is room for all, and they stay in
    the dataset's folder."""

    @classmethod
    def at(
        cls, url: str, options: StoreOptions | None = None, room: int = DEFAULT_ROOM
    ) -> ShardSource:
        """Return the source at a location: a folder is mapped, an object store is downloaded."""
        if is_remote(url):
            return cls(open=partial(_opened, url, options), room=room)
        return cls(folder=Path(open_store(url).url))


class ShardPlaces:
    """Finds the shards of a split; fetches remote ones, for the time they are held.

    Safe to use before and after a fork, to send to another process, and from threads. `moved` is
    called with a shard's number and its path, None when it is released; by one thread at a time.
    The path stays the same while the shard is held.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[ShardInfo],
        source: ShardSource | None,
        moved: Callable[[int, Path | None], None],
    ) -> None:
        self.folder = folder
        self.shards = shards
        self.source = source
        self._moved = moved
        is_near = source is None or source.open is None
        self.far = frozenset(
            number
            for number, shard in enumerate(() if is_near else shards)
            if not (folder / shard.file).exists()
        )
        """Numbers of the shards that are not mapped at their location."""
        self._scratch: ShardScratch | None = None
        self._pid = 0
        self._opening = threading.Lock()
        self._moving = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scratch": None, "_pid": 0, "_opening": None, "_moving": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()
        self._moving = threading.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether all shards are mapped at their location, so that none needs to be held."""
        return not self.far

    @property
    def has_room_for_all(self) -> bool:
        """Whether fetched shards stay."""
        return self.source is not None and self.source.room is None

    def path(self, number: int) -> Path:
        """Return the file of a shard that is not far; the dataset's folder has priority."""
        path = self.folder / self.shards[number].file
        if self.source is None or self.source.folder is None or path.exists():
            return path
        return self.source.folder / self.shards[number].file

    @contextmanager
    def holding(self, numbers: Iterable[int]) -> Iterator[None]:
        """Keep shards mappable while the block runs; fetch remote ones."""
        wanted = self.far.intersection(numbers)
        if not wanted:
            yield
            return
        with self.scratch().holding(wanted) as paths:
            for number, path in paths.items():
                self._move(number, path)
            if self.has_room_for_all:
                with self._moving:
                    self.far -= wanted
            yield

    def scratch(self) -> ShardScratch:
        """Return this process's store of fetched shards; some shards must be remote."""
        with self._opening:
            if self._scratch is None or self._pid != os.getpid():
                self._scratch = self._open_scratch()
                self._pid = os.getpid()
            return self._scratch

    def _open_scratch(self) -> ShardScratch:
        if self.source is None or self.source.open is None:
            raise ShardError(f"All shards of {self.folder} are mapped at their location")
        for number in self.far:
            self._move(number, None)
        return ShardScratch(
            self.source.open(self.shards),
            self.folder / SCRATCH,
            self.shards,
            self.source.room,
            lambda number: self._move(number, None),
        )

    def _move(self, number: int, path: Path | None) -> None:
        with self._moving:  # otherwise two threads could both get the previous path
            self._moved(number, path)


def _opened(url: str, options: StoreOptions | None, shards: Sequence[ShardInfo]) -> Downloads:
    return open_store(url, options)


@dataclass(frozen=True)
class LocalCopy:
    """Shards as local files; one of a store is downloaded to the folder, replacing the last."""

    store: Store
    folder: Path
    tick: Callable[[int], None] | None

    def read(self, shard: ShardInfo) -> tuple[Path, str]:
        """Return a shard's file, read to the end, and the checksum of the content."""
        if not is_remote(self.store.url):
            path = Path(self.store.url) / shard.file
            return path, file_xxh3_128(path, self.tick)
        path = self.folder / "shard.h5"
        path.unlink(missing_ok=True)
        free = free_bytes(self.folder)
        if free < shard.num_bytes:
            raise StorageFullError(
                f"No room in {self.folder} for {shard.file}: {shard.num_bytes:,} bytes "
                f"needed, {free:,} bytes free",
                "Free some space there, or set another folder for temporary files in TMPDIR.",
            )
        return path, self.store.download(shard.file, path, self.tick)
