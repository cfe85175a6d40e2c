"""One staged copy of a dataset: its shards, the missing ones, and how it is completed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError, ManifestError, StepError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.checksums import file_xxh3_128
from headrace.files.locks import exclusive
from headrace.files.machine import is_full
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.manifest_file import FILE_NAME, read_manifest, write_manifest
from headrace.record import Record
from headrace.staging.bringing import Filling, Tick, fetch_shards
from headrace.states import FailureClass


class StagedFile(Record):
    """A file at the time of its publication."""

    num_bytes: int
    mtime_ns: int
    """Time of its last change, nanoseconds since the epoch."""


def stat_of(path: Path) -> StagedFile | None:
    """Return the current state of a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return StagedFile(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


class Complete(Record):
    """`.complete.json`: what was published."""

    splits: tuple[str, ...]
    """Splits of the copy's manifest."""
    files: dict[str, StagedFile]
    """All files by path relative to the folder; missing shards were left at the source."""


class TierFullError(HeadraceError):
    """A tier ran out of space during a copy; nothing of the copy was left there."""

    failure_class = FailureClass.CAPACITY

    def __init__(self, error: OSError, tier: str) -> None:
        super().__init__(os.strerror(error.errno or errno.ENOSPC))
        self.tier = tier


@dataclass(frozen=True)
class StagedFolder:
    """`<tier folder>/datasets/<fingerprint>/` on the tier with that name."""

    path: Path
    tier: str

    @property
    def lock_file(self) -> Path:
        """Lock of the process that changes this copy."""
        return self.path.with_suffix(".lock")

    @property
    def use_file(self) -> Path:
        """Lock of the processes that read this copy; see `use`."""
        return self.path.with_suffix(".use")

    @property
    def reserved_file(self) -> Path:
        """File with the bytes that the copy will have when the holder of `lock_file` is done."""
        return self.path.with_suffix(".reserved")

    def complete(self) -> Complete | None:
        """Return what was published; None for an interrupted copy."""
        try:
            return read_record(self._complete_file, Complete)
        except StepError:  # from another release: every shard of the copy is checked
            return None

    def holds(self, manifest: Manifest, splits: Sequence[str]) -> bool:
        """Whether all shards of splits were published and did not change; reads no shard."""
        complete = self.complete()
        if complete is None or not set(splits) <= set(complete.splits):
            return False
        shards = shards_in(manifest, splits)
        if not self._tells(manifest, shards):
            return False
        files = (FILE_NAME, *(shard.file for shard in shards))
        return all(
            name in complete.files and stat_of(self.path / name) == complete.files[name]
            for name in files
        )

    def missing(self, manifest: Manifest, splits: Sequence[str]) -> tuple[ShardInfo, ...]:
        """Return shards that are not copied yet, or were removed from published splits."""
        shards = shards_in(manifest, self._with_published(splits))
        return tuple(shard for shard in shards if not self._has_size(shard))

    def fill(self, filling: Filling, tick: Tick | None = None) -> None:
        """Complete the copy and publish it.

        The caller holds the lock. `tick` is called with bytes done and bytes in all, about twice a
        second. Raises as `fetch_shards`, and `TierFullError` if there is no space left.
        """
        published = self.complete()
        every = self._with_published(filling.splits)
        shards = shards_in(filling.manifest, every)
        wanted = [shard for shard in shards if shard.file not in filling.left_out]
        added = [shard.file for shard in shards if not (self.path / shard.file).exists()]

        def is_intact(shard: ShardInfo) -> bool:
            return self._is_intact(shard, published, filling)

        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._remove_leftovers(shards)
            fetch_shards(filling, self.path, wanted, is_intact, tick)
            self._publish(filling.manifest, every, filling.left_out)
        except OSError as error:
            if not is_full(error):
                raise
            self._undo(added, everything=published is None)
            raise TierFullError(error, self.tier) from error

    def take_out(self, files: Iterable[str]) -> None:
        """Remove shards as if they were never published; the next stage copies them again."""
        with exclusive([self.lock_file]):
            complete, gone = self.complete(), set(files)
            if complete is not None:
                left = {name: file for name, file in complete.files.items() if name not in gone}
                write_record(self._complete_file, complete.model_copy(update={"files": left}))
            for file in gone:
                (self.path / file).unlink(missing_ok=True)

    @contextmanager
    def reserving(self, num_bytes: int) -> Iterator[None]:
        """Reserve the size of the copy against other stages; raise `TierFullError` if full."""
        try:
            write_text(self.reserved_file, json.dumps(num_bytes))
        except OSError as error:
            if is_full(error):
                raise TierFullError(error, self.tier) from error
            raise
        try:
            yield
        finally:
            self.reserved_file.unlink(missing_ok=True)

    def _tells(self, manifest: Manifest, shards: Sequence[ShardInfo]) -> bool:
        """Whether the copy's manifest is complete and describes shards as the dataset's does."""
        try:
            ours = read_manifest(self.path)
        except ManifestError:
            return False
        figures = (ours.statistics, ours.lengths) == (manifest.statistics, manifest.lengths)
        return figures and set(shards) <= set(ours.shards)

    def _publish(
        self, manifest: Manifest, splits: tuple[str, ...], left_out: Collection[str]
    ) -> None:
        restricted = restrict(manifest, splits)
        write_manifest(self.path, restricted)
        shards = (shard.file for shard in restricted.shards if shard.file not in left_out)
        files = {name: stat_of(self.path / name) for name in (FILE_NAME, *shards)}
        present = {name: file for name, file in files.items() if file is not None}
        write_record(self._complete_file, Complete(splits=splits, files=present))

    def _undo(self, added: Iterable[str], everything: bool) -> None:
        if everything:
            shutil.rmtree(self.path)
        for file in added:
            (self.path / file).unlink(missing_ok=True)

    def _remove_leftovers(self, shards: Iterable[ShardInfo]) -> None:
        """Remove temporary files of dead processes; the lock excludes other writers."""
        folders = {self.path, *((self.path / shard.file).parent for shard in shards)}
        for folder in folders:
            for path in folder.glob(".*"):
                if path != self._complete_file:
                    path.unlink()

    @property
    def _complete_file(self) -> Path:
        return self.path / ".complete.json"

    def _with_published(self, splits: Sequence[str]) -> tuple[str, ...]:
        complete = self.complete()
        return tuple(sorted({*splits, *(complete.splits if complete else ())}))

    def _has_size(self, shard: ShardInfo) -> bool:
        file = stat_of(self.path / shard.file)
        return file is not None and file.num_bytes == shard.num_bytes

    def _is_intact(self, shard: ShardInfo, complete: Complete | None, filling: Filling) -> bool:
        if not self._has_size(shard):
            return False
        path = self.path / shard.file
        published = complete.files.get(shard.file) if complete is not None else None
        if published == stat_of(path) and not filling.look_again:
            return True
        if published is None and not filling.verify:
            return True
        return file_xxh3_128(path) == shard.xxh3_128


def restrict(manifest: Manifest, splits: Collection[str]) -> Manifest:
    """Return the manifest of a copy that holds some splits only."""
    counts = {name: each for name, each in manifest.class_counts.items() if name in splits}
    return manifest.model_copy(
        update={
            "splits": {name: num for name, num in manifest.splits.items() if name in splits},
            "shards": tuple(shard for shard in manifest.shards if shard.split in splits),
            "folds": {name: sizes for name, sizes in manifest.folds.items() if name in splits},
            "is_part": manifest.is_part or not set(manifest.splits) <= set(splits),
            "class_counts": counts,
        }
    )


def shards_in(manifest: Manifest, splits: Collection[str]) -> tuple[ShardInfo, ...]:
    """Return the shards of splits."""
    return tuple(shard for shard in manifest.shards if shard.split in splits)
