"""One node of a gang whose nodes share shards: it serves its own shards, or fetches others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headrace.files.manifest import ShardInfo
from headrace.objects.protocol import Store
from headrace.shards.scratch import SCRATCH, ShardScratch
from headrace.staging import peers
from headrace.staging.gang_store import GangStore, Tick, Traffic
from headrace.staging.peers import Holding, Peer, PeerGroup, ShardServer

logger = logging.getLogger(__name__)

RELAYED_SHARDS = 4
"""Shards that a node holds for others at once, at most."""

_FIRST_WORD_S = 1.0
"""Seconds in which peers report their shards, before shards are read from the dataset."""

_POLL_S = 0.1


class GangMember:
    """This node as a server of its gang; raises `OSError` if it cannot listen at its address."""

    def __init__(self, group: PeerGroup) -> None:
        self.group = group
        self._server = ShardServer(group, holds_nothing)
        self._is_closed = False

    def meet(self, store: GangStore, holding: Holding, files: Sequence[str], tick: Tick) -> None:
        """Serve while this node stages, and let the others report their shards.

        From now on `store` waits for nodes that have not reported. `tick` is called while waiting.
        """
        self._server.holding = holding
        self.group.announce(self._server.server_port, files, is_staged=False)
        store.patient_until = time.monotonic() + peers.PATIENCE_S
        late_at = time.monotonic() + _FIRST_WORD_S
        while time.monotonic() < late_at:
            if all(self.group.notice_of(node) is not None for node in self.group.others):
                return
            tick(0)
            time.sleep(_POLL_S)

    def serve_to_the_end(
        self, holding: Holding, files: Sequence[str], check: Callable[[], None]
    ) -> None:
        """Serve this node's shards until no other node stages.

        `check` is called several times a second, and may raise to stop.
        """
        self._server.holding = holding
        self.group.announce(self._server.server_port, files, is_staged=True)
        late_at = time.monotonic() + peers.PATIENCE_S
        for node in self.group.others:
            while self._stages(node, late_at):
                check()
                time.sleep(_POLL_S)

    def all_hold(self, files: Sequence[str]) -> bool:
        """Whether all nodes hold these shards, so that no node needs them."""
        held = [self.group.held_by(node) or frozenset() for node in range(len(self.group.hosts))]
        return all(each.issuperset(files) for each in held)

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._server.close()

    def _stages(self, node: int, late_at: float) -> bool:
        notice = self.group.notice_of(node)
        if notice is None:
            return time.monotonic() < late_at
        return not notice.is_staged and Peer(self.group, node, notice.port).is_alive()


@contextmanager
def joining(group: PeerGroup | None) -> Iterator[GangMember | None]:
    """Serve while the block runs; None for a single node, or if it cannot listen."""
    member = None
    try:
        member = GangMember(group) if group else None
    except OSError as error:
        logger.warning("This node cannot serve shards to the others: %s", error)
    try:
        yield member
    finally:
        if member is not None:
            member.close()


class Relay:
    """Serves shards of a copy (`files`), and fetches others of the dataset once for all nodes.

    Shards that ranks of this node hold are linked, and the ranks link shards fetched here.
    """

    def __init__(
        self, source: Store, folder: Path, shards: Sequence[ShardInfo], files: Collection[str]
    ) -> None:
        self.traffic = Traffic()
        self._store = GangStore(source, shards, None, self.traffic)
        self._folder = folder
        self._shards = shards
        self._numbers = {shard.file: number for number, shard in enumerate(shards)}
        self._files = frozenset(files)
        self._scratch: ShardScratch | None = None
        self._opening = threading.Lock()

    @contextmanager
    def holding(self, file: str) -> Iterator[Path]:
        """See `Holding`."""
        if file in self._files:
            yield self._folder / file
            return
        number = self._numbers[file]
        with self._opening:
            if self._scratch is None:
                folder = self._folder / SCRATCH
                self._scratch = ShardScratch(
                    self._store, folder, self._shards, RELAYED_SHARDS, lambda _: None
                )
        with self._scratch.holding([number]) as paths:
            yield paths[number]

    def close(self) -> None:
        """Remove the fetched shards."""
        if self._scratch is not None:
            self._scratch.close()


def holds_nothing(file: str) -> AbstractContextManager[Path]:
    """See `Holding`."""
    raise KeyError(file)
