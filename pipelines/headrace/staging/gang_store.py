"""Shards that are not on this node, from the nodes of a gang and from the dataset's location."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.files.manifest import ShardInfo
from headrace.objects.protocol import Store
from headrace.objects.store import is_remote, open_store
from headrace.recipe.site import StoreOptions
from headrace.record import Record
from headrace.shards.shard_locations import ShardSource
from headrace.staging.peers import Notice, Peer, PeerGroup, PeerLostError

logger = logging.getLogger(__name__)

_LEFT_S = 60.0
"""Seconds for which a node that failed is not asked again."""

_LOOK_S = 1.0
"""Seconds between two requests for a node's report, while it stages."""

_POLL_S = 0.1

Tick = Callable[[int], None]
"""Called with bytes received, negative for those that were discarded; may raise to stop."""


class Brought(Record):
    """Bytes copied to a node."""

    source_bytes: int = 0
    """From the dataset's location."""
    peer_bytes: int = 0
    """From other nodes."""

    def __add__(self, other: Brought) -> Brought:
        return Brought(
            source_bytes=self.source_bytes + other.source_bytes,
            peer_bytes=self.peer_bytes + other.peer_bytes,
        )


class Traffic:
    """Counts what a process has fetched; for threads."""

    def __init__(self) -> None:
        self.brought = Brought()
        self._lock = threading.Lock()

    def add(self, *, source_bytes: int = 0, peer_bytes: int = 0) -> None:
        """Add bytes."""
        with self._lock:
            self.brought += Brought(source_bytes=source_bytes, peer_bytes=peer_bytes)


class GangStore:
    """Takes each shard from a node that holds it, so that it is read once from shared storage.

    If no node holds a shard, one node, the same for all, fetches it for all. A node that is gone or
    sends wrong bytes is skipped for a minute: another one fetches its shards. If that is this node,
    or if it fails, the shard is read from the dataset's location.

    `shards` may be requested, the same on all nodes; `group` is None for a single node.
    """

    def __init__(
        self, source: Store, shards: Sequence[ShardInfo], group: PeerGroup | None, traffic: Traffic
    ) -> None:
        self.source = source
        self.group = group
        self.traffic = traffic
        self._shards = {shard.file: shard for shard in shards}
        self._numbers = {shard.file: number for number, shard in enumerate(shards)}
        self._notices: dict[int, Notice] = {}
        self._looked_at: dict[int, float] = {}
        self._left_until: dict[tuple[int, bool], float] = {}
        self._lock = threading.Lock()
        self.patient_until = 0.0
        """Time limit of the wait for nodes that have not reported (`time.monotonic`)."""

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Fetch a shard; see `Store.download`."""
        shard = self._shards[path]
        if self.group is not None and self._take(self.group, shard, target, tick):
            self.traffic.add(peer_bytes=shard.num_bytes)
            return shard.xxh3_128
        return self.read_source(path, target, tick)

    def read_source(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Fetch a shard from the dataset's location."""
        checksum = self.source.download(path, target, tick)
        self.traffic.add(source_bytes=self._shards[path].num_bytes)
        return checksum

    def own_first(self, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        """Return the shards that this node fetches for all, then those that others fetch."""
        group = self.group
        if group is None:
            return list(shards)
        count = len(group.hosts)
        return sorted(shards, key=lambda s: (self._numbers[s.file] - group.index) % count)

    def _take(self, group: PeerGroup, shard: ShardInfo, target: Path, tick: Tick | None) -> bool:
        moved_bytes = 0

        def moved(num_bytes: int) -> None:
            nonlocal moved_bytes
            moved_bytes += num_bytes
            if tick is not None:
                tick(num_bytes)

        for node, holds in self._whom(group, shard.file):
            try:
                if self._peer(group, node, moved).take(shard, target, moved):
                    return True
            except PeerLostError as error:
                with self._lock:
                    self._left_until[node, holds] = time.monotonic() + _LEFT_S
                logger.warning("Node %d is not asked for %g s: %s", node, _LEFT_S, error)
                moved(-moved_bytes)
        return False

    def _whom(self, group: PeerGroup, file: str) -> list[tuple[int, bool]]:
        """Return nodes to ask for a shard, and whether they hold it; the nearest next one first."""
        now = time.monotonic()
        with self._lock:
            notices = ((node, self._look(group, node)) for node in group.others)
            holders = [(node, True) for node, known in notices if known and file in known.files]
            asked = [each for each in holders if self._left_until.get(each, now) <= now]
            return asked or self._who_fetches(group, file, now)

    def _who_fetches(self, group: PeerGroup, file: str, now: float) -> list[tuple[int, bool]]:
        """Return the node that fetches a shard for all; empty if it is this one."""
        for node in group.order(self._numbers[file]):
            if node == group.index:
                return []
            if all(self._left_until.get((node, holds), now) <= now for holds in (True, False)):
                return [(node, False)]
        return []

    def _look(self, group: PeerGroup, node: int) -> Notice | None:
        """Return a node's report; requested again each second while the node stages."""
        known, now = self._notices.get(node), time.monotonic()
        is_due = now - self._looked_at.get(node, now - _LOOK_S) >= _LOOK_S
        if is_due and not (known and known.is_staged):
            self._looked_at[node] = now
            found = group.notice_of(node)
            if found is not None:
                self._notices[node] = known = found
        return known

    def _peer(self, group: PeerGroup, node: int, tick: Tick) -> Peer:
        """Return a node; wait for it if it may still come."""
        while True:
            with self._lock:
                known = self._look(group, node)
            if known is not None:
                return Peer(group, node, known.port)
            if time.monotonic() >= self.patient_until:
                raise PeerLostError("it has not come")
            tick(0)
            time.sleep(_POLL_S)


def node_source(
    url: str,
    options: StoreOptions | None,
    room: int | None,
    group: PeerGroup | None,
    traffic: Traffic,
) -> ShardSource:
    """Return the source at `url` for a node that holds a part of the dataset.

    Each process holds at most `room` shards at once; None: fetched shards stay on the node. Nodes
    of `group` provide shards that are not on this one, and fetch for all what no node holds.
    Without a group, missing shards come from `url`; they are mapped if that is a folder and they
    need not stay.
    """
    if group is None and room is not None and not is_remote(url):
        return ShardSource.at(url, options, room)

    def opened(shards: Sequence[ShardInfo]) -> GangStore:
        return GangStore(open_store(url, options), shards, group, traffic)

    return ShardSource(open=opened, room=room)
