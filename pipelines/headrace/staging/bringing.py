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
from headrace.files.manifest import Manifest, ShardInfo
from headrace.staging.gang_member import GangMember
from headrace.staging.gang_store import GangStore

Tick = Callable[[int, int], None]
"""Called with bytes done and bytes in all; may raise to stop."""

_LEAST_THREADS, _MOST_THREADS = 2, 16
_TELL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Filling:
    """What to put into a copy."""

    store: GangStore
    """The dataset, or nodes that fill their own copies at the same time."""
    manifest: Manifest
    splits: tuple[str, ...]
    """Splits to add to the existing ones."""
    verify: bool = True
    """Compare checksums of shards that are copied or were left by an interrupted copy."""
    look_again: bool = False
    """Also compare checksums of published shards that look unchanged."""
    left_out: frozenset[str] = frozenset()
    """Files of the shards that stay at the source, for lack of room or until later."""
    member: GangMember | None = None
    """This node among these nodes."""


def fetch_shards(
    filling: Filling,
    folder: Path,
    shards: Sequence[ShardInfo],
    is_intact: Callable[[ShardInfo], bool],
    tick: Tick | None = None,
) -> None:
    """Copy shards into a folder, several at once; the first error stops all.

    Shards that are complete by then stay; no part of a shard stays. Checksums of shards from peers
    are always compared. One shard is copied per core at once: more of them would share its cache.
    A shard that `is_intact`, which several threads call, is not copied. `tick` is called about
    twice a second and at the end.

    Raises:
        ShardError: A shard is missing or differs from the manifest.
        StoreError: The store cannot be read.
    """
    work = _Work(filling, folder, shards, tick)
    num_threads = min(max(len(os.sched_getaffinity(0)), _LEAST_THREADS), _MOST_THREADS)
    with ThreadPoolExecutor(num_threads, "stage") as pool:
        try:
            work.run([pool.submit(work.look_at, shard, is_intact) for shard in shards])
            missing = [shard for shard in shards if shard.file not in work.here]
            if filling.member is not None:
                filling.member.meet(filling.store, work.holding, tuple(work.here), work.moved)
                missing = filling.store.own_first(missing)
            left = deque(missing)
            work.run([pool.submit(work.bring_all, left) for _ in range(num_threads)])
        except BaseException:
            work.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _Work:
    def __init__(
        self, filling: Filling, folder: Path, shards: Sequence[ShardInfo], tick: Tick | None
    ) -> None:
        self.stopped = threading.Event()
        self.here: set[str] = set()
        self._store, self._verify, self._folder = filling.store, filling.verify, folder
        self._shards = {shard.file: shard for shard in shards}
        self._total_bytes = sum(shard.num_bytes for shard in shards)
        self._tick = tick
        self._done_bytes = 0
        self._turns = {shard.file: threading.Lock() for shard in shards}
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

    def look_at(self, shard: ShardInfo, is_intact: Callable[[ShardInfo], bool]) -> None:
        self.moved(0)
        if is_intact(shard):
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
                store = self._store
                self._download(shard, store.read_source if from_source else store.download)
                self.here.add(shard.file)

    @contextmanager
    def holding(self, file: str) -> Iterator[Path]:
        """Copy a shard at the request of another node; see `Holding`."""
        self.bring(self._shards[file], from_source=True)  # never from the node that requests it
        yield self._folder / file

    def moved(self, num_bytes: int) -> None:
        """Count bytes; raises `StepCancelledError` if the work has to stop."""
        if self.stopped.is_set():
            raise StepCancelledError("Staging was stopped")
        with self._lock:
            self._done_bytes += num_bytes

    def _download(self, shard: ShardInfo, download: Callable[..., str]) -> None:
        target = self._folder / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getuid()}.{os.getpid()}")
        source = f"{self._store.source.url}/{shard.file}"
        try:
            checksum = download(shard.file, part, self.moved)
            num_bytes = part.stat().st_size
            if num_bytes != shard.num_bytes or (self._verify and checksum != shard.xxh3_128):
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
