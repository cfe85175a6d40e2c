"""Where the shards of a split lie: in its folder, in another one, or in a store far away."""

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
"""Shards of a store that are held at once, unless another number is given."""


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """Where shards come from that are not in the dataset's folder: one of the first two."""

    folder: Path | None = None
    """A folder that every process of the node can map."""
    open: Callable[[Sequence[ShardInfo]], Downloads] | None = None
    """Opens, in each process, what fetches shards of a split for the time they are read."""
    scratch: Path | None = None
    """Folder for what is fetched; default is `stream` in the dataset's folder."""
    room: int | None = DEFAULT_ROOM
    """Shards held at once by each process, at most; null: there is room for all, which stay in the
    dataset's folder."""

    @classmethod
    def at(
        cls, url: str, options: StoreOptions | None = None, room: int = DEFAULT_ROOM
    ) -> ShardSource:
        """The source at a location: a folder is mapped, an object store is fetched from."""
        if is_remote(url):
            return cls(open=partial(_opened, url, options), room=room)
        return cls(folder=Path(open_store(url).url))


class ShardPlaces:
    """Finds the shards of a split; fetches those that are far away, for the time they are held.

    Safe to use before and after a fork, to send to another process, and from threads. `moved` is
    called with a shard's number and its path, None when it is let go; by one thread at a time. The
    path is the same for as long as anybody holds the shard.
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
        self.far = frozenset(self._find_far())
        """Numbers of the shards that are not where they are mapped."""
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
        """Whether all shards are where they are mapped, so that none needs to be held."""
        return not self.far

    @property
    def has_room_for_all(self) -> bool:
        """Whether what is fetched stays."""
        return self.source is not None and self.source.room is None

    def path(self, number: int) -> Path:
        """File of a shard that is not far; the folder of the dataset goes first."""
        path = self.folder / self.shards[number].file
        if self.source is None or self.source.folder is None or path.exists():
            return path
        return self.source.folder / self.shards[number].file

    @contextmanager
    def holding(self, numbers: Iterable[int]) -> Iterator[None]:
        """Keep shards where they can be mapped while the block runs; fetches those far away."""
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
        """What this process holds of the shards that are far away; there must be some."""
        with self._opening:
            if self._scratch is None or self._pid != os.getpid():
                self._scratch = self._open_scratch()
                self._pid = os.getpid()
            return self._scratch

    def _open_scratch(self) -> ShardScratch:
        if self.source is None or self.source.open is None:
            raise ShardError(f"All shards of {self.folder} are mapped from where they lie")
        for number in self.far:
            self._move(number, None)
        return ShardScratch(
            self.source.open(self.shards),
            self.source.scratch or self.folder / SCRATCH,
            self.shards,
            self.source.room,
            lambda number: self._move(number, None),
        )

    def _move(self, number: int, path: Path | None) -> None:
        with self._moving:  # or two threads may both find that it was in another place before
            self._moved(number, path)

    def _find_far(self) -> Iterator[int]:
        if self.source is not None and self.source.open is not None:
            for number, shard in enumerate(self.shards):
                if not (self.folder / shard.file).exists():
                    yield number


def _opened(url: str, options: StoreOptions | None, shards: Sequence[ShardInfo]) -> Downloads:
    return open_store(url, options)


@dataclass(frozen=True)
class LocalCopy:
    """Shards as local files; one out of a store is brought to the folder, in place of the last."""

    store: Store
    folder: Path
    tick: Callable[[int], None] | None

    def read(self, shard: ShardInfo) -> tuple[Path, str]:
        """Its file, read to the end, and the checksum of what was read."""
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
                "Free some space there, or name another folder for temporary files in TMPDIR.",
            )
        return path, self.store.download(shard.file, path, self.tick)
