"""One node's part in passing shards on: whom to take each from, and serving what it has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.storage.manifest import ShardInfo
from headrace.storage.peer_group import PeerGroup
from headrace.storage.peer_link import PATIENCE_S, PeerLink, PeerLostError
from headrace.storage.peer_server import News, ShardServer, Shelf

logger = logging.getLogger(__name__)

_FIRST_WORD_S = 1.0
"""Seconds in which peers tell what they have before anything is read where the dataset lies."""

_LOOK_S = 0.1
_TELL_S = 0.5


@dataclass
class _Peer:
    link: PeerLink
    moved_at: float = 0.0
    files: set[str] = field(default_factory=set)
    moved_bytes: int = -1
    is_complete: bool = False
    gone: bool = False

    @property
    def is_heard(self) -> bool:
        return self.moved_bytes >= 0

    def hear(self, news: News) -> None:
        if news.files or news.moved_bytes != self.moved_bytes:
            self.moved_at = time.monotonic()
        self.files.update(news.files)
        self.moved_bytes = news.moved_bytes
        self.is_complete = news.is_complete

    def is_awaited(self, now: float) -> bool:
        """Whether a shard that it does not have yet may still come to it."""
        return not (self.gone or self.is_complete) and now - self.moved_at < PATIENCE_S


class Peers:
    """The other nodes, as one node uses them; made by `sharing`.

    Every shard has an order of nodes. The first of them fetches it from where the dataset lies,
    the others take it from a node that has it. A node that has gone, makes no progress or gives
    wrong bytes is passed over, at the latest for this node itself: nobody waits in a circle.

    Args:
        group: The nodes.
        shards: All shards of the dataset.
        shelf: Where this node puts what it has.
        server: Serves it.
    """

    def __init__(
        self, group: PeerGroup, shards: Sequence[ShardInfo], shelf: Shelf, server: ShardServer
    ) -> None:
        self.shelf = shelf
        self._server = server
        self._group = group
        self._orders = {shard.file: group.order(n) for n, shard in enumerate(shards)}
        self._visits: list[threading.Thread] = []
        self._met_at = 0.0
        self._peers = {node: _Peer(PeerLink(group, node)) for node in group.others}
        self._ended = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def meet(self) -> None:
        """Let the others see what is on the shelf by now, and hear what they have."""
        if self._visits:
            return
        self._met_at = time.monotonic()
        for peer in self._peers.values():
            peer.moved_at = self._met_at
        self._group.announce(self._server.port)
        self._visits = [
            threading.Thread(target=self._follow, args=(node,), daemon=True) for node in self._peers
        ]
        for visit in self._visits:
            visit.start()

    def whom(self, file: str) -> int | None:
        """Whom to take a shard from now.

        Returns:
            Index of a peer that has it; this node's own index for where the dataset lies; None
            while another node is about to have it.
        """
        now = time.monotonic()
        own = self._group.index
        with self._lock:
            order = [node for node in self._orders[file] if node != own]
            for node in order:
                if file in self._peers[node].files and not self._peers[node].gone:
                    return node
            before = self._orders[file][: self._orders[file].index(own)]
            if any(self._peers[node].is_awaited(now) for node in before):
                return None
            return None if self._awaits_first_word(now) else own

    def tell_held(self) -> None:
        """Tell the nodes of the group what lies here, for those who read while this one serves."""
        self._group.tell_held(self.shelf.files)

    def all_hold(self, files: Iterable[str]) -> bool:
        """Whether all nodes have told that they hold these shards, so that none will ask."""
        wanted = frozenset(files)
        return all(
            wanted <= (self._group.held_by(node) or frozenset())
            for node in range(len(self._group.hosts))
        )

    def is_own(self, node: int) -> bool:
        """Whether an answer of `whom` means where the dataset lies."""
        return node == self._group.index

    def fetch(self, node: int, shard: ShardInfo, target: Path, tick: Callable[[int], None]) -> bool:
        """Take a shard from a peer; one that fails is left.

        Args:
            node: The peer.
            shard: The shard.
            target: File to create, in a folder that exists.
            tick: Called with the bytes of every chunk; may raise to stop.

        Returns:
            Whether the shard came as its manifest says.

        Raises:
            OSError: `target` cannot be written.
        """
        moved_bytes = 0

        def moved(num_bytes: int) -> None:
            nonlocal moved_bytes
            moved_bytes += num_bytes
            tick(num_bytes)

        try:
            self._peers[node].link.take(shard, target, moved)
        except PeerLostError as error:
            self._leave(node, str(error))
            tick(-moved_bytes)
            return False
        return True

    def serve_to_the_end(self, check: Callable[[], None]) -> None:
        """Need nothing more, and serve what is here until no other node needs it.

        Args:
            check: Called twice a second; may raise to stop.
        """
        self.shelf.complete()
        self.meet()
        self._ended.set()
        self._server.wait_until_unneeded(PATIENCE_S, check)
        for visit in self._visits:  # a node that was not visited would wait for this one
            while visit.is_alive():
                check()
                visit.join(_TELL_S)

    def close(self) -> None:
        """Need and serve nothing more; harmless when it is so."""
        if not self._closed.is_set():
            self._ended.set()
            self._closed.set()
            self._server.close()

    def _awaits_first_word(self, now: float) -> bool:
        unheard = any(not (peer.is_heard or peer.gone) for peer in self._peers.values())
        return unheard and now - self._met_at < _FIRST_WORD_S

    def _follow(self, node: int) -> None:
        """Hear what a node has; one that needs nothing comes, too, so that it is not awaited."""
        peer = self._peers[node]
        try:
            late_at = self._met_at + PATIENCE_S
            while self._group.port_of(node) is None and time.monotonic() < late_at:
                if self._closed.wait(_LOOK_S):
                    return
            peer.link.follow(lambda news: self._hear(node, news), self._ended)
        except (OSError, PeerLostError) as error:
            if not self._ended.is_set():
                self._leave(node, str(error))

    def _hear(self, node: int, news: News) -> None:
        with self._lock:
            self._peers[node].hear(news)

    def _leave(self, node: int, why: str) -> None:
        with self._lock:
            self._peers[node].gone = True
        logger.warning("Shards are no longer taken from node %d: %s", node, why)


@contextmanager
def sharing(group: PeerGroup | None, shards: Sequence[ShardInfo]) -> Iterator[Peers | None]:
    """Serve and be served while the block runs.

    Args:
        group: The nodes; None for a node alone.
        shards: All shards of the dataset.

    Yields:
        The peers; None for a node alone, and when this node cannot listen at its address.
    """
    shelf = Shelf()
    try:
        server = ShardServer(group, shelf) if group else None
    except OSError as error:
        logger.warning("This node cannot serve shards to the others: %s", error)
        server = None
    if group is None or server is None:
        yield None
        return
    peers = Peers(group, shards, shelf, server)
    try:
        yield peers
    finally:
        peers.close()
