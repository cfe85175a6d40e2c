"""Shards that are not on this node, from the nodes of a gang and from where the dataset lies."""

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
"""Seconds between two looks at what a node holds, while it stages."""

_POLL_S = 0.1

Tick = Callable[[int], None]
"""Called with bytes that came, negative for those that came in vain; may raise to stop."""


class Brought(Record):
    """What was brought to a node, in bytes."""

    source_bytes: int = 0
    """From where the dataset lies."""
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
        """Count more."""
        with self._lock:
            self.brought += Brought(source_bytes=source_bytes, peer_bytes=peer_bytes)


class GangStore:
    """Takes each shard from a node that holds it, so that it leaves the shared storage once.

    A shard that no node holds is asked of one node, the same for all, which fetches it for all.
    A node that has gone or gives wrong bytes is passed over for a minute: another one fetches what
    it had. When that is this node, or fails, the shard is read where the dataset lies.

    `shards` may be asked for, the same on all nodes; `group` is None for a node alone.
    """

    def __init__(
        self,
        source: Store,
        shards: Sequence[ShardInfo],
        group: PeerGroup | None,
        traffic: Traffic,
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
        """Until when nodes that have not come are waited for (`time.monotonic`)."""

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Fetch a shard; see `Store.download`."""
        shard = self._shards[path]
        if self.group is not None and self._take(self.group, shard, target, tick):
            self.traffic.add(peer_bytes=shard.num_bytes)
            return shard.xxh3_128
        return self.read_source(path, target, tick)

    def read_source(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Fetch a shard from where the dataset lies."""
        checksum = self.source.download(path, target, tick)
        self.traffic.add(source_bytes=self._shards[path].num_bytes)
        return checksum

    def own_first(self, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        """Shards that this node fetches for all, then those of the others, who are fetching."""
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
        """Nodes to ask for a shard, and whether they hold it; the nearest after this one first."""
        now = time.monotonic()
        with self._lock:
            holders = [(node, True) for node in group.others if file in self._held(group, node)]
            asked = [each for each in holders if self._left_until.get(each, now) <= now]
            return asked or self._who_fetches(group, file, now)

    def _who_fetches(self, group: PeerGroup, file: str, now: float) -> list[tuple[int, bool]]:
        """The node that fetches for all what none can give; none when it is this one."""
        for node in group.order(self._numbers[file]):
            if node == group.index:
                return []
            if all(self._left_until.get((node, holds), now) <= now for holds in (True, False)):
                return [(node, False)]
        return []

    def _held(self, group: PeerGroup, node: int) -> tuple[str, ...]:
        known = self._look(group, node)
        return known.files if known is not None else ()

    def _look(self, group: PeerGroup, node: int) -> Notice | None:
        """What a node has told; asked for again each second while it stages."""
        known, now = self._notices.get(node), time.monotonic()
        is_due = now - self._looked_at.get(node, now - _LOOK_S) >= _LOOK_S
        if is_due and not (known and known.is_staged):
            self._looked_at[node] = now
            found = group.notice_of(node)
            if found is not None:
                self._notices[node] = known = found
        return known

    def _peer(self, group: PeerGroup, node: int, tick: Tick) -> Peer:
        """A node; waits for one that may still come."""
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
    """The source at `url` for a node that holds a part of the dataset.

    Each process holds `room` shards at once, at most; None: what it fetches stays on the node.
    Nodes of `group` hold shards which are not on this one, and fetch for all what none holds;
    without a group, what is missing comes from `url`, and is mapped if that is a folder and it need
    not stay.
    """
    if group is None and room is not None and not is_remote(url):
        return ShardSource.at(url, options, room)

    def opened(shards: Sequence[ShardInfo]) -> GangStore:
        return GangStore(open_store(url, options), shards, group, traffic)

    return ShardSource(open=opened, room=room)
