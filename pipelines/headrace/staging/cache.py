"""Staged copies on the tiers of a node: their state, eviction, and damaged shards."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from headrace.errors import ManifestError
from headrace.files.checksums import file_xxh3_128
from headrace.files.locks import at_once, idle_s, last_used_at
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.manifest_file import read_manifest
from headrace.files.removal import LEFT_BY_REMOVALS, remove
from headrace.files.tiers import bytes_in, folder_of, keep_s
from headrace.recipe.site import Tier
from headrace.record import Record
from headrace.staging.staged_folder import StagedFile, StagedFolder, stat_of

logger = logging.getLogger(__name__)

SMALL_BYTES = 128 * 2**20
"""A copy up to this size is verified before use: that takes less than a tenth of a second."""

Tick = Callable[[int], None]
"""Called with the bytes that were read, by the thread that read them; may raise to stop."""

_MOST_THREADS = 16
_INTERRUPTED_KEPT_S = 86400.0


class CachedCopy(Record):
    """State of one staged copy."""

    fingerprint: str
    """Content of the dataset; name of the folder."""
    name: str
    """Name of the dataset; empty for an interrupted copy."""
    tier: str
    path: Path
    state: Literal["in use", "being staged", "idle", "interrupted"]
    """`interrupted`: an incomplete copy, completed by the next stage of the dataset."""
    splits: tuple[str, ...]
    num_shards: int
    """Shards on the tier."""
    num_left_out: int
    """Shards of these splits that are read from the dataset's own location."""
    num_bytes: int
    """Bytes on the tier."""
    last_used_at: float
    """Seconds since the epoch; 0: never."""

    @property
    def folder(self) -> StagedFolder:
        """The copy itself."""
        return StagedFolder(self.path, self.tier)


def copies_on(tier: str, datasets: Path) -> tuple[CachedCopy, ...]:
    """Return staged copies below `<tier folder>/datasets`, the least recently used first."""
    found = [_look_at(StagedFolder(path, tier)) for path in _folders(datasets)]
    return tuple(sorted(found, key=lambda copy: (copy.last_used_at, copy.fingerprint)))


def copies_of(tiers: Sequence[Tier]) -> tuple[CachedCopy, ...]:
    """Return staged copies on all tiers, fastest tier first."""
    return tuple(copy for tier in tiers for copy in copies_on(tier.name, _datasets(tier)))


def evict(folder: StagedFolder) -> bool:
    """Remove a copy unless it is in use or being staged; return whether it was removed."""
    with at_once(folder.lock_file) as is_unstaged, at_once(folder.use_file) as unused:
        if not (is_unstaged and unused):
            return False
        is_there = folder.path.exists()
        remove(folder.path)
    return is_there


def idle_copies(datasets: Path, idle_for_s: float, but: str) -> list[CachedCopy]:
    """Return copies that may be evicted, the first one first: interrupted ones, then by last use.

    Copies used in the last `idle_for_s` seconds stay, and the copy with the fingerprint `but`.
    """
    copies = [copy for copy in copies_on("", datasets) if copy.fingerprint != but]
    old = [
        copy
        for copy in copies
        if copy.state == "interrupted"
        or (copy.state == "idle" and idle_s(copy.folder.use_file) >= idle_for_s)
    ]
    return sorted(old, key=lambda copy: (copy.state == "idle", copy.last_used_at))


def sweep(tier: Tier) -> None:
    """Remove remains of evictions by dead processes, and copies past the tier's `keep`."""
    datasets = _datasets(tier)
    for path in datasets.glob(LEFT_BY_REMOVALS):
        name, *_ = path.name[1:].rsplit(".", 2)
        with at_once(datasets / f"{name}.lock") as nobody_evicts:
            if nobody_evicts:
                shutil.rmtree(path, ignore_errors=True)
    for copy in past_keep(tier):
        if evict(copy.folder):
            logger.info("%s was removed from tier %s: unused", copy.path, copy.tier)


def past_keep(tier: Tier) -> tuple[CachedCopy, ...]:
    """Return this user's copies unused for the tier's `keep`; incomplete ones after a day."""
    datasets = _datasets(tier)
    own = [path for path in _folders(datasets) if path.stat().st_uid == os.getuid()]
    return tuple(
        _look_at(folder)
        for folder in (StagedFolder(path, tier.name) for path in own)
        if _is_past(folder, keep_s(tier))
    )


def verify(copy: CachedCopy) -> tuple[str, ...]:
    """Compare the checksums of a published copy; return and remove damaged shards.

    The next stage of the dataset copies them again. Programs that read one now keep it.
    """
    complete = copy.folder.complete()
    if complete is None:
        return ()
    shards = [shard for shard in read_manifest(copy.path).shards if shard.file in complete.files]
    damaged = wrong_shards(copy.path, shards)
    drop(copy.path, damaged)
    return damaged


def _look_at(folder: StagedFolder) -> CachedCopy:
    complete = folder.complete()
    manifest = _manifest(folder.path) if complete else None
    files = set(complete.files) if complete else set()
    shards = manifest.shards if manifest else ()
    present = sum(shard.file in files for shard in shards)
    return CachedCopy(
        fingerprint=folder.path.name,
        name=manifest.name if manifest else "",
        tier=folder.tier,
        path=folder.path,
        state=_state(folder, manifest is not None),
        splits=complete.splits if complete else (),
        num_shards=present if manifest else len(list(folder.path.glob("shards/*"))),
        num_left_out=len(shards) - present,
        num_bytes=bytes_in(folder.path),
        last_used_at=last_used_at(folder.use_file),
    )


def _state(
    folder: StagedFolder, is_whole: bool
) -> Literal["in use", "being staged", "idle", "interrupted"]:
    with at_once(folder.lock_file) as nobody_stages:
        if not nobody_stages:
            return "being staged"
    if folder.use_file.exists():
        with at_once(folder.use_file) as unused:
            if not unused:
                return "in use"
    return "idle" if is_whole else "interrupted"


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except ManifestError:  # of a newer release, or damaged: the next stage replaces it
        return None


def _is_past(folder: StagedFolder, kept_s: float) -> bool:
    """Whether a copy was not used for so long, or an incomplete one not changed; at most a day."""
    if folder.complete() is None:
        return idle_s(folder.path) > min(kept_s, _INTERRUPTED_KEPT_S)
    return idle_s(folder.use_file if folder.use_file.exists() else folder.path) > kept_s


def _folders(datasets: Path) -> Iterator[Path]:
    found: Iterable[Path] = datasets.iterdir() if datasets.is_dir() else ()
    return (path for path in sorted(found) if path.is_dir() and not path.name.startswith("."))


def _datasets(tier: Tier) -> Path:
    return folder_of(tier) / "datasets"


class Soundness:
    """Finds shards of a copy that have changed or are damaged since this object was made.

    A shard counts as damaged if its bytes have another checksum than the manifest's, if it cannot
    be read, or if the file was removed, changed or replaced since: another process may have
    repaired it, and it was read before that.

    `shards` are those of the dataset; missing ones may arrive later.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardInfo]) -> None:
        self._folder = folder
        self._shards = shards
        self._known: dict[str, StagedFile] = {}
        self._present()

    def damaged(
        self, num_threads: int = 1, tick: Tick | None = None, only: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Read existing shards (`only` some files); return the files of damaged ones."""
        files = {shard.file for shard in self._shards} if only is None else set(only)
        changed = self.changed(files)
        asked = [shard for shard in self._present() if shard.file in files - changed]
        wrong = wrong_shards(self._folder, asked, num_threads, tick)
        return tuple(sorted({*changed, *wrong}))

    def changed(self, files: Iterable[str]) -> set[str]:
        """Return the files that were removed, changed or replaced; read none of them."""
        known = ((file, self._known.get(file)) for file in files)
        return {file for file, was in known if was and stat_of(self._folder / file) != was}

    def _present(self) -> list[ShardInfo]:
        present = []
        for shard in self._shards:
            file = stat_of(self._folder / shard.file)
            if file is not None:
                self._known.setdefault(shard.file, file)
                present.append(shard)
        return present


def wrong_shards(
    folder: Path, shards: Sequence[ShardInfo], num_threads: int = 1, tick: Tick | None = None
) -> tuple[str, ...]:
    """Return the files of the shards below a folder whose bytes differ from the manifest."""
    with ThreadPoolExecutor(num_threads, "recheck") as pool:
        right = list(pool.map(lambda shard: _is_right(folder / shard.file, shard, tick), shards))
    return tuple(shard.file for shard, is_right in zip(shards, right, strict=True) if not is_right)


def drop(folder: Path, files: Iterable[str]) -> None:
    """Remove shards from a copy, so that the next stage copies them again."""
    for file in files:
        (folder / file).unlink(missing_ok=True)


def all_threads() -> int:
    """Return the number of threads that read fastest, if nothing else runs."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def _is_right(path: Path, shard: ShardInfo, tick: Tick | None) -> bool:
    file = stat_of(path)
    if file is None or file.num_bytes != shard.num_bytes:
        return False
    try:
        return file_xxh3_128(path, tick) == shard.xxh3_128
    except OSError:  # such as EIO: an unreadable shard is damaged
        return False
