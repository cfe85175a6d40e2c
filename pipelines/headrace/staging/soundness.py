"""Looks again at the bytes of a staged copy: what was verified may have changed since."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import ShardInfo
from headrace.record import Record

SMALL_BYTES = 128 * 2**20
"""A copy of this size is looked at before it is used: that takes less than a tenth of a second."""

_MOST_THREADS = 16

Tick = Callable[[int], None]
"""Called with the bytes that were read, by the thread that read them; may raise to stop."""


class StagedFile(Record):
    """A file as it was when it was published."""

    num_bytes: int
    """Size."""
    mtime_ns: int
    """Time of its last change, nanoseconds since the epoch."""


class Soundness:
    """Tells which shards of a copy are no longer what they were when this was made.

    A shard counts as damaged when its bytes have another checksum than the manifest's, when it
    cannot be read, and when the file has gone or was changed or replaced since: then others have
    mended it perhaps, and it was read before that.

    Args:
        folder: The copy.
        shards: Shards of the dataset; those that are not there yet may come.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardInfo]) -> None:
        self._folder = folder
        self._shards = shards
        self._known: dict[str, StagedFile] = {}
        self._present()

    def damaged(
        self,
        num_threads: int = 1,
        tick: Tick | None = None,
        only: Collection[str] | None = None,
    ) -> tuple[str, ...]:
        """Read shards that are there (`only` some files); gives the files of those damaged."""
        files = {shard.file for shard in self._shards} if only is None else set(only)
        changed = self.changed(files)
        asked = [shard for shard in self._present() if shard.file in files - changed]
        wrong = wrong_shards(self._folder, asked, num_threads, tick)
        return tuple(sorted({*changed, *wrong}))

    def changed(self, files: Iterable[str]) -> set[str]:
        """Those of some files that have gone, were changed or replaced; reads none of them."""
        known = ((file, self._known.get(file)) for file in files)
        return {file for file, was in known if was and stat_of(self._folder / file) != was}

    def _present(self) -> list[ShardInfo]:
        """Shards that are there, with what they are like when they are first seen."""
        present = []
        for shard in self._shards:
            file = stat_of(self._folder / shard.file)
            if file is not None:
                self._known.setdefault(shard.file, file)
                present.append(shard)
        return present


def stat_of(path: Path) -> StagedFile | None:
    """A file as it is now; None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return StagedFile(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def wrong_shards(
    folder: Path, shards: Sequence[ShardInfo], num_threads: int = 1, tick: Tick | None = None
) -> tuple[str, ...]:
    """Files of the shards below a folder whose bytes are not what the manifest says."""
    with ThreadPoolExecutor(num_threads, "recheck") as pool:
        right = list(pool.map(lambda shard: _is_right(folder / shard.file, shard, tick), shards))
    return tuple(shard.file for shard, is_right in zip(shards, right, strict=True) if not is_right)


def drop(folder: Path, files: Iterable[str]) -> None:
    """Take shards out of a copy, so that the next stage brings them anew.

    Programs that have one open keep it.
    """
    for file in files:
        (folder / file).unlink(missing_ok=True)


def all_threads() -> int:
    """Threads that read as fast as this machine can, when nothing else runs."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def _is_right(path: Path, shard: ShardInfo, tick: Tick | None) -> bool:
    file = stat_of(path)
    if file is None or file.num_bytes != shard.num_bytes:
        return False
    try:
        return file_xxh3_128(path, tick) == shard.xxh3_128
    except OSError:  # such as EIO: what cannot be read is damaged
        return False
