"""Shards that come into a staged copy while it is read.

The process that stages brings them in the order in which they will be read; one that needs a shard
sooner brings it itself. A lock file a shard sees to it that each comes once a node. A shard has its
name only when its checksum was found right, and then it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.storage.fetching import Brought, Fetch, Tick, fetch_shards, lock_of
from headrace.storage.manifest import ShardInfo
from headrace.storage.room import told_when_full
from headrace.storage.store_protocol import Store


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """How shards come while the copy is read."""

    order: tuple[str, ...]
    """Files of shards, the one needed soonest first; others come after them."""
    num_first: int
    """How many of them must be there before anybody reads."""
    begun: Callable[[Path], None]
    """Called with the copy's folder when they are."""


def fetch_meanwhile(fetch: Fetch, arrival: Arrival, tick: Tick | None = None) -> Brought:
    """Bring shards in the order in which they are needed; tell when enough are there.

    What an interrupted copy has left is checked first, before anybody reads it.

    Args:
        fetch: What is brought.
        arrival: In which order.
        tick: As for `fetch_shards`.

    Returns:
        What was brought by this process.

    Raises:
        ShardError: A shard is missing or is not what the manifest says.
        StoreError: The store cannot be read.
        OSError: The folder cannot be written, before anybody reads.
        StorageFullError: There is no space left, later.
    """
    places = {file: place for place, file in enumerate(arrival.order)}
    shards = sorted(fetch.shards, key=lambda shard: places.get(shard.file, len(places)))
    first = {shard.file for shard in shards[: arrival.num_first]}
    now = [s for s in shards if s.file in first or (fetch.folder / s.file).exists()]
    brought = fetch_shards(replace(fetch, shards=now), tick)
    arrival.begun(fetch.folder)
    rest = [shard for shard in shards if shard not in now]
    later = replace(
        fetch,
        shards=rest,
        shared=True,
        is_intact=lambda shard: (fetch.folder / shard.file).exists(),
    )
    with told_when_full(fetch.folder, sum(shard.num_bytes for shard in rest)):
        brought += fetch_shards(later, tick)
    for shard in rest:
        lock_of(fetch.folder / shard.file).unlink(missing_ok=True)
    return brought


def obtain(store: Store, folder: Path, shard: ShardInfo) -> None:
    """Wait for a shard that another process brings to a copy, or bring it.

    Raises:
        ShardError: It is missing or is not what the manifest says.
        StoreError: The store cannot be read.
        OSError: The folder cannot be written.
    """
    path = folder / shard.file
    if not path.exists():
        fetch_shards(
            Fetch(
                store=store,
                folder=folder,
                shards=[shard],
                verify=True,
                is_intact=lambda _: path.exists(),
                shared=True,
            )
        )
