"""Fetches shards for other nodes while this one trains, once for all that ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.storage.gang_store import GangStore, Traffic
from headrace.storage.manifest import Manifest, ShardInfo
from headrace.storage.peer_server import Shelf
from headrace.storage.scratch import SCRATCH, Downloads, ShardScratch

ROOM = 4
"""Shards that a node holds for others at once, at most."""


class Relay:
    """Shards that no node holds, for the time that others need them.

    What ranks of this node have at the moment is linked, and they link what is fetched here.

    Args:
        store: Where the shards come from.
        folder: Folder of the dataset on this node.
        shards: All shards of the dataset.
    """

    def __init__(self, store: Downloads, folder: Path, shards: Sequence[ShardInfo]) -> None:
        self._store = store
        self._folder = folder
        self._shards = tuple(shards)
        self._numbers = {shard.file: number for number, shard in enumerate(shards)}
        self._scratch: ShardScratch | None = None
        self._opening = threading.Lock()

    @contextmanager
    def holding(self, file: str) -> Iterator[Path]:
        """Keep a shard while the block runs.

        Args:
            file: Its name in the manifest.

        Yields:
            Where it lies.

        Raises:
            ValueError: There is no such shard.
            ShardError: It is not what the manifest says.
            StoreError: The store cannot be read.
            StorageFullError: There is no room for it.
        """
        number = self._numbers.get(file)
        if number is None:
            raise ValueError(f"there is no shard '{file}'")
        with self._opened().holding([number]) as paths:
            yield paths[number]

    def close(self) -> None:
        """Remove what is held."""
        if self._scratch is not None:
            self._scratch.close()

    def _opened(self) -> ShardScratch:
        with self._opening:
            if self._scratch is None:
                folder = self._folder / SCRATCH
                self._scratch = ShardScratch(
                    self._store, folder, self._shards, ROOM, lambda number: None
                )
            return self._scratch


@contextmanager
def relaying(
    source: Downloads, folder: Path, manifest: Manifest, shelf: Shelf
) -> Iterator[Traffic]:
    """Fetch for others what is not on a shelf, while the block runs.

    Args:
        source: Where the dataset lies.
        folder: Folder of the dataset on this node.
        manifest: Manifest of the dataset.
        shelf: What this node serves.

    Yields:
        Counts what is fetched.
    """
    traffic = Traffic()
    relay = Relay(GangStore(source, manifest.shards, None, traffic), folder, manifest.shards)
    shelf.fetch_others(relay.holding)
    try:
        yield traffic
    finally:
        relay.close()
