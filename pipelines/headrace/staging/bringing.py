"""Copies shards to a folder by several threads, and verifies them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ShardError, StepCancelledError, StoreMissingError
from headrace.files.manifest import ShardInfo
from headrace.staging.gang_member import GangMember
from headrace.staging.gang_store import GangStore

Tick = Callable[[int, int], None]
"""Called with bytes done and bytes in all; may raise to stop."""

_LEAST_THREADS, _MOST_THREADS = 2, 16
_TELL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Source, target and options of a copy."""

    store: GangStore
    """The dataset, or nodes of a gang before it."""
    folder: Path
    """Target of the shards, which keep their names in the manifest."""
    shards: Sequence[ShardInfo]
    """The shards."""
    verify: bool
    """Compare checksums; those of shards from peers are always compared."""
    is_intact: Callable[[ShardInfo], bool]
    """Whether a shard need not be copied; called by several threads."""
    member: GangMember | None = None
    """This node in a gang whose nodes copy the same dataset at the same time."""

    @property
    def num_threads(self) -> int:
        """Shards that are copied at once: one per core. More of them would share a core's cache."""
        return min(max(len(os.sched_getaffinity(0)), _LEAST_THREADS), _MOST_THREADS)


def fetch_shards(fetch: Fetch, tick: Tick | None = None) -> None:
    """Copy shards, several at once; the first error stops all.

    Shards that are complete by then stay; no part of a shard stays. `tick` is called about twice a
    second and at the end.

    Raises:
        ShardError: A shard is missing or differs from the manifest.
        StoreError: The store cannot be read.
    """
    work = _Work(fetch, tick)
    with ThreadPoolExecutor(fetch.num_threads, "stage") as pool:
        try:
            work.run([pool.submit(work.look_at, shard) for shard in fetch.shards])
            missing = [shard for shard in fetch.shards if shard.file not in work.here]
            if fetch.member is not None:
                fetch.member.meet(fetch.store, work.holding, tuple(work.here), work.moved)
                missing = fetch.store.own_first(missing)
            left = deque(missing)
            work.run([pool.submit(work.bring_all, left) for _ in range(fetch.num_threads)])
        except BaseException:
            work.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _Work:
    def __init__(self, fetch: Fetch, tick: Tick | None) -> None:
        self.stopped = threading.Event()
        self.here: set[str] = set()
        self._fetch = fetch
        self._shards = {shard.file: shard for shard in fetch.shards}
        self._total_bytes = sum(shard.num_bytes for shard in fetch.shards)
        self._tick = tick
        self._done_bytes = 0
        self._turns = {shard.file: threading.Lock() for shard in fetch.shards}
        self._lock = threading.Lock()

    def run(self, futures: Sequence[Future[None]]) -> None:
        """Wait for all and report progress; raise what any of them raised."""
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_TELL_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if self._tick is not None:
                self._tick(self._done_bytes, self._total_bytes)

    def look_at(self, shard: ShardInfo) -> None:
        self.moved(0)
        if self._fetch.is_intact(shard):
            self.here.add(shard.file)
            self.moved(shard.num_bytes)

    def bring_all(self, left: deque[ShardInfo]) -> None:
        while True:
            try:
                shard = left.popleft()
            except IndexError:
                return
            self.bring(shard)

    def bring(self, shard: ShardInfo, *, from_source: bool = False) -> None:
        """Copy a shard that is not there yet; others that need it wait for it."""
        self.moved(0)
        with self._turns[shard.file]:
            if shard.file not in self.here:
                store = self._fetch.store
                self._download(shard, store.read_source if from_source else store.download)
                self.here.add(shard.file)

    @contextmanager
    def holding(self, file: str) -> Iterator[Path]:
        """Copy a shard at the request of another node; see `Holding`."""
        self.bring(self._shards[file], from_source=True)  # never from the node that requests it
        yield self._fetch.folder / file

    def moved(self, num_bytes: int) -> None:
        """Count bytes; raises `StepCancelledError` if the work has to stop."""
        if self.stopped.is_set():
            raise StepCancelledError("Staging was stopped")
        with self._lock:
            self._done_bytes += num_bytes

    def _download(self, shard: ShardInfo, download: Callable[..., str]) -> None:
        target = self._fetch.folder / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getuid()}.{os.getpid()}")
        source = f"{self._fetch.store.source.url}/{shard.file}"
        try:
            checksum = download(shard.file, part, self.moved)
            num_bytes = part.stat().st_size
            if num_bytes != shard.num_bytes or (self._fetch.verify and checksum != shard.xxh3_128):
                raise ShardError(
                    f"Shard {source} is damaged: expected {shard.num_bytes} bytes with checksum "
                    f"{shard.xxh3_128}, got {num_bytes} bytes with checksum {checksum}",
                    "Run `headrace verify` on the dataset; pack it again or restore the shard.",
                )
            part.replace(target)
        except StoreMissingError as error:
            raise ShardError(
                f"Shard {source} is missing, although the dataset's manifest has it",
                "Pack the dataset again or restore the shard.",
            ) from error
        finally:
            part.unlink(missing_ok=True)
