"""Where the shards of a split lie: in its folder, in another one, or in a store far away."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.errors import ShardError
from headrace.recipe.site import StoreOptions
from headrace.storage.bringing import obtain
from headrace.storage.gang_store import GangStore, Traffic
from headrace.storage.manifest import ShardInfo
from headrace.storage.peer_group import PeerGroup
from headrace.storage.scratch import SCRATCH, Downloads, ShardScratch
from headrace.storage.store import is_remote, open_store
from headrace.storage.store_protocol import Store

DEFAULT_ROOM = 4
"""Shards of a store that are held at once, unless another number is given."""


Through = Callable[[Store, Sequence[ShardInfo]], Downloads]
"""Gives what stands between the store of a split's shards and this process."""


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """Where shards come from that are not in the dataset's folder.

    For a store, `open` gives it; else `folder` is mapped directly.
    """

    folder: Path | None = None
    """A folder that every process of the node can map."""
    open: Callable[[], Store] | None = None
    """Opens the store; can be sent to another process."""
    scratch: Path | None = None
    """Folder for what is fetched; default is `stream` in the dataset's folder."""
    room: int = DEFAULT_ROOM
    """Shards held at once by each process, at most."""
    through: Through | None = None
    """What fetches go through, such as nodes that hold a part; null: they go to the store."""
    stays: bool = False
    """What is fetched stays in the dataset's folder, which another process fills meanwhile."""

    @classmethod
    def at(
        cls, url: str, options: StoreOptions | None = None, room: int = DEFAULT_ROOM
    ) -> ShardSource:
        """The source at a location: a folder is mapped, an S3 prefix is fetched from.

        Raises:
            UserError: It is neither.
        """
        if is_remote(url):
            return cls(open=partial(open_store, url, options), room=room)
        return cls(folder=Path(open_store(url).url))

    @classmethod
    def fetched(
        cls, url: str, options: StoreOptions | None, room: int, through: Through
    ) -> ShardSource:
        """The source at a location, a folder or not: what is missing is fetched through others."""
        return cls(open=partial(open_store, url, options), room=room, through=through)

    @classmethod
    def of_node(
        cls,
        url: str,
        options: StoreOptions | None,
        room: int,
        group: PeerGroup | None,
        traffic: Traffic,
    ) -> ShardSource:
        """The source at a location, for a node that holds a part of the dataset.

        Args:
            url: Where the dataset lies.
            options: How to reach S3.
            room: Shards held at once by each process, at most.
            group: Nodes that hold shards which are not on this one, and fetch for all what none
                holds; None: what is missing comes from `url`, and is mapped if that is a folder.
            traffic: Counts what is fetched.
        """
        if group is None and not is_remote(url):
            return cls.at(url, options, room)
        return cls.fetched(
            url, options, room, lambda store, shards: GangStore(store, shards, group, traffic)
        )

    @classmethod
    def arriving(cls, url: str, options: StoreOptions | None = None) -> ShardSource:
        """The source at a location from which the dataset's folder is being filled."""
        return cls(open=partial(open_store, url, options), stays=True)


class ShardPlaces:
    """Finds the shards of a split; fetches those that are far away, for the time they are held.

    Safe to use before and after a fork, to send to another process, and from threads.

    Args:
        folder: The dataset's folder.
        shards: Shards of the split.
        source: Where shards come from that are not there.
        moved: Called with a shard's number and its path, None when it is let go; by one thread
            at a time. The path is the same for as long as anybody holds the shard.
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
        missing = frozenset(self._find_far())
        stays = source is not None and source.stays
        self.far = frozenset() if stays else missing
        self._coming = set(missing - self.far)
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
        return not self.far and not self._coming

    def path(self, number: int) -> Path:
        """File of a shard that is not far; the folder of the dataset goes first."""
        path = self.folder / self.shards[number].file
        if self.source is None or self.source.folder is None or path.exists():
            return path
        return self.source.folder / self.shards[number].file

    @contextmanager
    def holding(self, numbers: Iterable[int]) -> Iterator[None]:
        """Keep shards where they can be mapped while the block runs; fetches those far away.

        Raises:
            ShardError: A shard is not what the manifest says.
            StoreError: The store cannot be read.
        """
        wanted = self.far.intersection(numbers)
        for number in self._coming.intersection(numbers):
            self._obtain(number)
        if not wanted:
            yield
            return
        with self.scratch().holding(wanted) as paths:
            for number, path in paths.items():
                self._move(number, path)
            yield

    def scratch(self) -> ShardScratch:
        """What this process holds of the shards that are far away.

        Raises:
            ShardError: No shard is far away.
            StorageFullError: The scratch has no room.
        """
        with self._opening:
            if self._scratch is None or self._pid != os.getpid():
                self._scratch = self._open_scratch()
                self._pid = os.getpid()
            return self._scratch

    def _obtain(self, number: int) -> None:
        if self.source is not None and self.source.open is not None:
            obtain(self.source.open(), self.folder, self.shards[number])
        self._coming.discard(number)

    def _open_scratch(self) -> ShardScratch:
        if self.source is None or self.source.open is None:
            raise ShardError(f"All shards of {self.folder} are mapped from where they lie")
        for number in self.far:
            self._move(number, None)
        store, through = self.source.open(), self.source.through
        return ShardScratch(
            store if through is None else through(store, self.shards),
            self.source.scratch or self.folder / SCRATCH,
            self.shards,
            self.source.room,
            lambda number: self._move(number, None),
        )

    def _move(self, number: int, path: Path | None) -> None:
        with self._moving:  # else two threads might both find that it was elsewhere before
            self._moved(number, path)

    def _find_far(self) -> Iterator[int]:
        if self.source is not None and self.source.open is not None:
            for number, shard in enumerate(self.shards):
                if not (self.folder / shard.file).exists():
                    yield number
