"""Shards brought to a folder by several threads, verified on the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ShardError, StepCancelledError, StoreMissingError
from headrace.storage.locks import exclusive_while
from headrace.storage.manifest import ShardInfo
from headrace.storage.store_protocol import Store

Tick = Callable[[int, int], None]
"""Called with bytes done and bytes in all; may raise to stop."""

_THREADS = 4
_TELL_S = 0.5


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
    """Compare checksums."""
    is_intact: Callable[[ShardInfo], bool]
    """Whether a shard need not be brought; called by several threads."""
    shared: bool = False
    """Whether other processes bring shards to the folder at the same time; each comes once."""


def fetch_shards(fetch: Fetch, tick: Tick | None = None) -> int:
    """Bring shards, four at once; the first fault stops all.

    What has come by then stays, each shard whole or not at all.

    Args:
        fetch: What is brought.
        tick: Called by the calling thread, about twice a second and at the end.

    Returns:
        Bytes that were brought.

    Raises:
        ShardError: A shard is missing or is not what the manifest says.
        StoreError: The store cannot be read.
        OSError: The folder cannot be written.
    """
    progress = _Progress(sum(shard.num_bytes for shard in fetch.shards), tick)
    with ThreadPoolExecutor(_THREADS, "stage") as pool:
        futures = [pool.submit(_bring, fetch, shard, progress) for shard in fetch.shards]
        try:
            _wait(futures, progress)
        except BaseException:
            progress.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return sum(future.result() for future in futures)


class _Progress:
    def __init__(self, total_bytes: int, tick: Tick | None) -> None:
        self.stopped = threading.Event()
        self._total_bytes = total_bytes
        self._tick = tick
        self._done_bytes = 0
        self._lock = threading.Lock()

    def moved(self, num_bytes: int) -> None:
        if self.stopped.is_set():
            raise StepCancelledError("Staging was stopped")
        with self._lock:
            self._done_bytes += num_bytes

    def tell(self) -> None:
        if self._tick is not None:
            self._tick(self._done_bytes, self._total_bytes)


def _wait(futures: Sequence[Future[int]], progress: _Progress) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, _TELL_S, FIRST_COMPLETED)
        for future in finished:
            future.result()
        progress.tell()


def lock_of(path: Path) -> Path:
    """Lock file of the process that brings a shard to a path."""
    return path.with_name(f".{path.name}.lock")


def _bring(fetch: Fetch, shard: ShardInfo, progress: _Progress) -> int:
    progress.moved(0)
    if not fetch.shared:
        return _bring_one(fetch, shard, progress)
    target = fetch.folder / shard.file
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_while(lock_of(target), lambda: progress.moved(0)):
        return _bring_one(fetch, shard, progress)


def _bring_one(fetch: Fetch, shard: ShardInfo, progress: _Progress) -> int:
    if fetch.is_intact(shard):
        progress.moved(shard.num_bytes)
        return 0
    target = fetch.folder / shard.file
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getuid()}.{os.getpid()}")
    source = f"{fetch.store.url}/{shard.file}"
    try:
        checksum = fetch.store.download(shard.file, part, progress.moved)
        num_bytes = part.stat().st_size
        if num_bytes != shard.num_bytes or (fetch.verify and checksum != shard.xxh3_128):
            raise ShardError(
                f"Shard {source} is damaged: expected {shard.num_bytes} bytes with checksum "
                f"{shard.xxh3_128}, got {num_bytes} bytes with checksum {checksum}",
                "Run `headrace verify` on the dataset; pack it again or restore the shard.",
            )
        part.replace(target)
    except StoreMissingError as error:
        raise ShardError(
            f"Shard {source} is missing, though the manifest of the dataset names it",
            "Pack the dataset again or restore the shard.",
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return shard.num_bytes
