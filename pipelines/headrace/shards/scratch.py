"""Shards that are fetched from a store when they are needed, into room for some or for all.

Each process has its own folder below the scratch, and holds a lock in it while it lives. A shard
that another process of the node holds is linked, not fetched again. The next process removes the
folders of dead ones. If there is room for all, shards move into the dataset's folder, once per
node, and stay.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import ShardError
from headrace.files.locks import exclusive, locked, locked_at_once
from headrace.files.machine import require_room, told_when_full
from headrace.files.manifest import ShardInfo

SCRATCH = "stream"
"""Folder in a dataset's folder for shards that are fetched and removed again."""

_ALIVE = ".alive"
"""Lock file in a process's folder."""


class Downloads(Protocol):
    """The required part of a `Store`."""

    def download(self, path: str, target: Path) -> str:
        """Fetch a file; return its XXH3 checksum, 128 bits, hexadecimal."""


@dataclass
class _Held:
    path: Path
    used: int
    pins: int = 1
    ready: bool = False


class ShardScratch:
    """Shards of one dataset that this process holds, for its threads.

    At most `room` shards are held at once; None: all of them, which then stay in the dataset's
    folder, that of `folder`. `on_evict` is called with the number of a shard before its file is
    removed. `max_held` is the most shards held at once, `num_fetched` counts those from the store,
    `num_linked` those of other processes.
    """

    def __init__(
        self,
        store: Downloads,
        folder: Path,
        shards: Sequence[ShardInfo],
        room: int | None,
        on_evict: Callable[[int], None],
    ) -> None:
        self.max_held = self.num_fetched = self.num_linked = 0
        self.room = len(shards) if room is None else room
        self._stays_in = folder.parent if room is None else None
        self._store = store
        self._root = folder
        self._shards = shards
        self._on_evict = on_evict
        self._held: dict[int, _Held] = {}
        self._needs: dict[int, float] = {}
        self._clock = 0
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._own, alive = _own_folder(folder)
        self._close = weakref.finalize(self, _remove, os.getpid(), self._own, alive)
        missing = [shard for shard in shards if not self._path(shard).exists()]
        largest = sorted((shard.num_bytes for shard in missing), reverse=True)[: self.room]
        require_room(self._own, sum(largest))

    def close(self) -> None:
        """Remove this process's shards."""
        self._close()

    def needs(self, needs: dict[int, float]) -> None:
        """Set when shards are needed next, smaller is sooner; others may be evicted at once."""
        with self._changed:
            self._needs = needs
            self._changed.notify_all()

    def holds(self, number: int) -> bool:
        """Whether a shard is present or being fetched."""
        with self._changed:
            return number in self._held

    @contextmanager
    def holding(self, numbers: Iterable[int]) -> Iterator[dict[int, Path]]:
        """Keep shards while the block runs, and fetch missing ones; yield paths by number.

        Raises:
            ShardError: A shard differs from the manifest, or more than `room` are needed.
            StoreError: The store cannot be read.
        """
        wanted = sorted(set(numbers))
        if len(wanted) > self.room:
            raise ShardError(
                f"One batch has samples of {len(wanted)} shards, more than the {self.room} "
                "remote ones that are held at once",
                "Set data.shuffle_window, or raise data.read_ahead.",
            )
        if not self._pin_ready(wanted):
            self._pin_all(wanted)
        try:
            yield {number: self._held[number].path for number in wanted}
        finally:
            self._unpin(wanted)

    def claim_ahead(self, coming: Sequence[int]) -> int | None:
        """Reserve room for the first of the shards `coming` that is neither present nor fetched.

        No shard that is needed sooner is evicted for it. After a number, call `fetch_claimed`; None
        if all are present or no room can be made.
        """
        with self._changed:
            number = next((number for number in coming if number not in self._held), None)
            if number is None or not self._make_room(number):
                return None
            self._reserve(number)
            return number

    def fetch_claimed(self, number: int) -> None:
        """Fetch a shard of `claim_ahead`; errors as `holding`."""
        self._fill(number, self._held[number])
        self._unpin([number])

    def _pin_ready(self, numbers: Sequence[int]) -> bool:
        """Pin shards if all are present, so that their holders never wait for others."""
        with self._changed:
            found = [self._held[number] for number in numbers if number in self._held]
            if len(found) < len(numbers) or not all(held.ready for held in found):
                return False
            for held in found:
                held.pins += 1
            return True

    def _pin_all(self, numbers: Sequence[int]) -> None:
        """Pin and fetch shards, one thread at a time: two with a half each would deadlock."""
        pinned: list[int] = []
        with self._turn:
            try:
                for number in numbers:
                    self._pin(number)
                    pinned.append(number)
            except BaseException:
                self._unpin(pinned)
                raise

    def _pin(self, number: int) -> None:
        with self._changed:
            while True:
                held = self._held.get(number)
                if held is None and self._make_room(None):
                    held = self._reserve(number)
                    break
                if held is not None and held.ready:
                    held.pins += 1
                    return
                self._changed.wait()
        self._fill(number, held)

    def _reserve(self, number: int) -> _Held:
        held = _Held(self._path(self._shards[number]), self._tick())
        self._held[number] = held
        self.max_held = max(self.max_held, len(self._held))
        return held

    def _path(self, shard: ShardInfo) -> Path:
        if self._stays_in is not None:
            return self._stays_in / shard.file
        return self._own / Path(shard.file).name

    def _fill(self, number: int, held: _Held) -> None:
        try:
            fetched = self._obtain(self._shards[number], held.path)
        except BaseException:
            with self._changed:
                del self._held[number]
                self._changed.notify_all()
            raise
        with self._changed:
            self.num_fetched += fetched
            self.num_linked += not fetched
            held.ready = True
            self._changed.notify_all()

    def _obtain(self, shard: ShardInfo, path: Path) -> bool:
        """Get a shard; return whether it came from the store, not from another process."""
        with exclusive([self._root / f".{path.name}.lock"]):
            if path.exists():
                return False
            for sibling in self._root.glob(f"*/{path.name}"):
                with suppress(OSError):  # it has just been released
                    os.link(sibling, path)
                    return False
            part = self._own / f".{path.name}.part"
            try:
                with told_when_full(self._own, shard.num_bytes):
                    checksum = self._store.download(shard.file, part)
                if checksum != shard.xxh3_128:
                    raise ShardError(
                        f"Shard {shard.file} came with checksum {checksum}, the manifest says "
                        f"{shard.xxh3_128}; it holds {shard.num_samples} samples of split "
                        f"'{shard.split}'",
                        "Run `headrace verify` on its dataset.",
                    )
                part.rename(path)
                return True
            finally:
                part.unlink(missing_ok=True)

    def _make_room(self, ahead: int | None) -> bool:
        """Evict shards until one more fits; for a shard ahead only those needed later."""
        while len(self._held) >= self.room:
            free = [number for number, held in self._held.items() if held.ready and not held.pins]
            if not free:
                return False
            last = max(free, key=lambda n: (self._need(n), -self._held[n].used))
            if ahead is not None and self._need(last) <= self._need(ahead):
                return False
            self._on_evict(last)
            self._held.pop(last).path.unlink(missing_ok=True)
        return True

    def _need(self, number: int) -> float:
        return self._needs.get(number, float("inf"))

    def _unpin(self, numbers: Iterable[int]) -> None:
        with self._changed:
            for number in numbers:
                held = self._held[number]
                held.pins -= 1
                held.used = self._tick()
            self._changed.notify_all()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _own_folder(root: Path) -> tuple[Path, int]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive([root / ".folders.lock"]):
        for path in root.iterdir():
            handle = locked_at_once(path / _ALIVE) if path.is_dir() else None
            if handle is not None:
                shutil.rmtree(path)
                os.close(handle)
        own = root / f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        own.mkdir(mode=0o700)
        return own, locked(own / _ALIVE)


def _remove(pid: int, folder: Path, alive: int) -> None:
    if pid == os.getpid():  # a forked child leaves its parent's folder alone
        shutil.rmtree(folder, ignore_errors=True)
        os.close(alive)
