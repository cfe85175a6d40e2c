"""Shards that are not on this node, from the nodes of a gang and from where the dataset lies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.storage.fetching import Brought
from headrace.storage.manifest import ShardInfo
from headrace.storage.peer_group import PeerGroup
from headrace.storage.peer_link import PeerLink, PeerLostError
from headrace.storage.scratch import Downloads

logger = logging.getLogger(__name__)

_LEFT_S = 60.0
"""Seconds for which a node that failed is not asked again."""

_LOOK_S = 1.0
"""Seconds between two looks whether a node has told what it holds."""


class Traffic:
    """What a process has fetched while it reads; for threads."""

    def __init__(self) -> None:
        self._brought = Brought()
        self._lock = threading.Lock()

    @property
    def brought(self) -> Brought:
        """Bytes fetched so far."""
        with self._lock:
            return self._brought

    def add(self, brought: Brought) -> None:
        """Count more."""
        with self._lock:
            self._brought += brought


class GangStore:
    """Takes each shard from a node that holds it, so that it leaves the shared storage once.

    A shard that no node holds is asked of one node, the same for all, which fetches it for all
    (`Relay`). A node that has gone or gives wrong bytes is passed over for a minute: another one
    fetches what it had. When that is this node, or fails, the shard is read where the dataset lies.

    Args:
        source: Where the dataset lies.
        shards: Shards that may be asked for, the same on all nodes.
        group: The nodes; None for a node alone.
        traffic: Counts bytes.
    """

    def __init__(
        self,
        source: Downloads,
        shards: Sequence[ShardInfo],
        group: PeerGroup | None,
        traffic: Traffic,
    ) -> None:
        self._source = source
        self._shards = {shard.file: shard for shard in shards}
        self._numbers = {shard.file: number for number, shard in enumerate(shards)}
        self._group = group
        self._traffic = traffic
        self._held: dict[int, frozenset[str]] = {}
        self._looked_at: dict[int, float] = {}
        self._left_until: dict[tuple[int, bool], float] = {}
        self._lock = threading.Lock()

    def download(self, path: str, target: Path) -> str:
        """Fetch a shard; see `Store.download`.

        Returns:
            XXH3 of what came, 128 bits, hexadecimal; right when it came from a node.
        """
        shard = self._shards[path]
        if self._group is not None and self._take(self._group, shard, target):
            self._traffic.add(Brought(peer_bytes=shard.num_bytes))
            return shard.xxh3_128
        checksum = self._source.download(path, target)
        self._traffic.add(Brought(source_bytes=shard.num_bytes))
        return checksum

    def _take(self, group: PeerGroup, shard: ShardInfo, target: Path) -> bool:
        for node, holds in self._whom(group, shard.file):
            try:
                PeerLink(group, node).take(shard, target)
            except PeerLostError as error:
                with self._lock:
                    self._left_until[node, holds] = time.monotonic() + _LEFT_S
                logger.warning("Node %d is not asked for %g s: %s", node, _LEFT_S, error)
            else:
                return True
        return False

    def _whom(self, group: PeerGroup, file: str) -> list[tuple[int, bool]]:
        """Nodes to ask for a shard, and whether they hold it; the nearest after this one first."""
        count, now = len(group.hosts), time.monotonic()
        after = [(group.index + step) % count for step in range(1, count)]
        with self._lock:
            holders = [(node, True) for node in after if file in self._held_by(group, node, now)]
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

    def _held_by(self, group: PeerGroup, node: int, now: float) -> frozenset[str]:
        if node not in self._held and now - self._looked_at.get(node, now - _LOOK_S) >= _LOOK_S:
            self._looked_at[node] = now
            held = group.held_by(node)
            if held is not None:
                self._held[node] = held
        return self._held.get(node, frozenset())
