"""Shards brought to a folder by several threads, verified on the way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ShardError, StepCancelledError, StoreMissingError
from headrace.storage.locks import exclusive_while
from headrace.storage.manifest import ShardInfo
from headrace.storage.peers import Peers
from headrace.storage.store_protocol import Store

Tick = Callable[[int, int], None]
"""Called with bytes done and bytes in all; may raise to stop."""

_LEAST_THREADS, _MOST_THREADS = 2, 16
_TELL_S = 0.5
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What is brought, from where, to where."""

    store: Store
    """The dataset."""
    folder: Path
    """Where the shards go, as they are named in the manifest."""
    shards: Sequence[ShardInfo]
    """The shards."""
    verify: bool
    """Compare checksums; those of shards that come from peers always are."""
    is_intact: Callable[[ShardInfo], bool]
    """Whether a shard need not be brought; called by several threads."""
    shared: bool = False
    """Whether other processes bring shards to the folder at the same time; each comes once."""
    peers: Peers | None = None
    """Nodes that bring the same dataset at the same time."""

    @property
    def num_threads(self) -> int:
        """Shards that are brought at once: one a core. More of them share a core's cache."""
        return min(max(len(os.sched_getaffinity(0)), _LEAST_THREADS), _MOST_THREADS)


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What was brought, in bytes."""

    source_bytes: int = 0
    """From where the dataset lies."""
    peer_bytes: int = 0
    """From other nodes."""
    mended: frozenset[str] = frozenset()
    """Files of shards that had been there before, and were damaged or had gone."""

    @property
    def num_bytes(self) -> int:
        """Bytes in all."""
        return self.source_bytes + self.peer_bytes

    def __add__(self, other: Brought) -> Brought:
        """Both."""
        return Brought(
            source_bytes=self.source_bytes + other.source_bytes,
            peer_bytes=self.peer_bytes + other.peer_bytes,
            mended=self.mended | other.mended,
        )


def fetch_shards(fetch: Fetch, tick: Tick | None = None) -> Brought:
    """Bring shards, several at once; the first fault stops all.

    What has come by then stays, each shard whole or not at all.

    Args:
        fetch: What is brought.
        tick: Called by the calling thread, about twice a second and at the end.

    Raises:
        ShardError: A shard is missing or is not what the manifest says.
        StoreError: The store cannot be read.
        OSError: The folder cannot be written.
    """
    work = _Work(fetch, tick)
    with ThreadPoolExecutor(fetch.num_threads, "stage") as pool:
        try:
            work.wait([pool.submit(work.look_at, number) for number in range(len(fetch.shards))])
            work.sort()
            if fetch.peers is not None:
                fetch.peers.meet()
            work.wait([pool.submit(work.bring_all) for _ in range(fetch.num_threads)])
        except BaseException:
            work.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return Brought(source_bytes=work.source_bytes, peer_bytes=work.peer_bytes)


class _Work:
    """What the threads share.

    Attributes:
        stopped: Set to make them end.
        source_bytes: Bytes brought from the store.
        peer_bytes: Bytes brought from peers.
    """

    def __init__(self, fetch: Fetch, tick: Tick | None) -> None:
        self.stopped = threading.Event()
        self.source_bytes = self.peer_bytes = 0
        self._fetch = fetch
        self._total_bytes = sum(shard.num_bytes for shard in fetch.shards)
        self._tick = tick
        self._done_bytes = 0
        self._missing_numbers: list[int] = []
        self._missing: list[ShardInfo] = []
        self._nothing_until = float("-inf")
        self._news = threading.Event()
        self._lock = threading.Lock()

    def wait(self, futures: Sequence[Future[None]]) -> None:
        """Wait for all, telling how far they are.

        Raises:
            Exception: What any of them raised.
        """
        for future in futures:
            future.add_done_callback(lambda _: self._news.set())
        pending = list(futures)
        while pending:
            self._news.wait(_TELL_S)
            self._news.clear()
            for future in pending:
                if future.done():
                    future.result()
            pending = [future for future in pending if not future.done()]
            if self._tick is not None:
                self._tick(self._done_bytes, self._total_bytes)

    def look_at(self, number: int) -> None:
        """Sort out a shard that is there already."""
        self._moved(0)
        shard = self._fetch.shards[number]
        if self._fetch.is_intact(shard):
            self._moved(shard.num_bytes)
            self._has(shard)
        else:
            with self._lock:
                self._missing_numbers.append(number)

    def sort(self) -> None:
        """Put what is missing into the order in which it was asked for."""
        self._missing = [self._fetch.shards[number] for number in sorted(self._missing_numbers)]

    def bring_all(self) -> None:
        """Bring one shard after the other until none is missing."""
        while self._missing:
            self._moved(0)
            found = self._take()
            if found is None:
                self.stopped.wait(_LOOK_S)
            else:
                self._bring_alone(*found)

    def _take(self) -> tuple[ShardInfo, int | None] | None:
        """A shard that can be brought now, and the peer that has it; None for none now."""
        peers = self._fetch.peers
        with self._lock:
            if time.monotonic() < self._nothing_until:
                return None
            for position, shard in enumerate(self._missing):
                node = peers.whom(shard.file) if peers else None
                if peers is None or node is not None:
                    del self._missing[position]
                    is_own = peers is None or node is None or peers.is_own(node)
                    return shard, None if is_own else node
            self._nothing_until = time.monotonic() + _LOOK_S
        return None

    def _bring_alone(self, shard: ShardInfo, node: int | None) -> None:
        target = self._fetch.folder / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self._fetch.shared:
            self._bring(shard, node)
            return
        with exclusive_while(lock_of(target), lambda: self._moved(0)):
            if self._fetch.is_intact(shard):
                self._moved(shard.num_bytes)
                self._has(shard)
            else:
                self._bring(shard, node)

    def _bring(self, shard: ShardInfo, node: int | None) -> None:
        target = self._fetch.folder / shard.file
        part = target.with_name(f".{target.name}.{os.getuid()}.{os.getpid()}")
        try:
            if node is None or self._fetch.peers is None:
                _download(self._fetch, shard, part, self._moved)
            elif not self._fetch.peers.fetch(node, shard, part, self._moved):
                self._put_back(shard)
                return
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        with self._lock:
            self.source_bytes += shard.num_bytes if node is None else 0
            self.peer_bytes += 0 if node is None else shard.num_bytes
        self._has(shard)
        self._news.set()

    def _put_back(self, shard: ShardInfo) -> None:
        with self._lock:
            self._missing.append(shard)

    def _has(self, shard: ShardInfo) -> None:
        if self._fetch.peers is not None:
            self._fetch.peers.shelf.put(shard.file, self._fetch.folder / shard.file)

    def _moved(self, num_bytes: int) -> None:
        if self.stopped.is_set():
            raise StepCancelledError("Staging was stopped")
        with self._lock:
            self._done_bytes += num_bytes
        if self._fetch.peers is not None and num_bytes:
            self._fetch.peers.shelf.moved(num_bytes)


def lock_of(path: Path) -> Path:
    """Lock file of the process that brings a shard to a path."""
    return path.with_name(f".{path.name}.lock")


def _download(fetch: Fetch, shard: ShardInfo, part: Path, moved: Callable[[int], None]) -> None:
    source = f"{fetch.store.url}/{shard.file}"
    try:
        checksum = fetch.store.download(shard.file, part, moved)
    except StoreMissingError as error:
        raise ShardError(
            f"Shard {source} is missing, though the manifest of the dataset names it",
            "Pack the dataset again or restore the shard.",
        ) from error
    num_bytes = part.stat().st_size
    if num_bytes != shard.num_bytes or (fetch.verify and checksum != shard.xxh3_128):
        raise ShardError(
            f"Shard {source} is damaged: expected {shard.num_bytes} bytes with checksum "
            f"{shard.xxh3_128}, got {num_bytes} bytes with checksum {checksum}",
            "Run `headrace verify` on the dataset; pack it again or restore the shard.",
        )
