"""One staged copy of a dataset: what is there, what is missing, and how it is completed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import HeadraceError, ShardError, StepError
from headrace.states import FailureClass
from headrace.storage.atomic import read_record, write_record
from headrace.storage.checksums import copy_verified, file_xxh3_128
from headrace.storage.manifest import FILE_NAME, Manifest, Record, ShardInfo, write_manifest

_FULL = (errno.ENOSPC, errno.EDQUOT)

Tick = Callable[[int, int], None]


class TierFullError(HeadraceError):
    """A tier ran out of space during a copy; nothing of the copy was left there."""

    failure_class = FailureClass.CAPACITY


class StagedFile(Record):
    """A file as it was when it was published."""

    num_bytes: int
    """Size."""
    mtime_ns: int
    """Time of its last change, nanoseconds since the epoch."""


class Complete(Record):
    """`.complete.json`: what was published."""

    splits: tuple[str, ...]
    """Splits that are whole."""
    files: dict[str, StagedFile]
    """All files by path relative to the folder."""


@dataclass(frozen=True)
class StagedFolder:
    """`<tier folder>/datasets/<fingerprint>/`.

    Attributes:
        path: The folder.
        tier: Name of the tier it lies on.
    """

    path: Path
    tier: str

    def holds(self, splits: tuple[str, ...]) -> bool:
        """Whether these splits were published and no file changed since; reads no shard."""
        complete = self._complete()
        return (
            complete is not None
            and set(splits) <= set(complete.splits)
            and all(_stat(self.path / name) == file for name, file in complete.files.items())
        )

    @property
    def lock_file(self) -> Path:
        """Lock file of this copy."""
        return self.path.with_suffix(".lock")

    def missing_bytes(self, manifest: Manifest, splits: tuple[str, ...]) -> int:
        """Bytes that have yet to be copied."""
        shards = _shards(manifest, self._with_published(splits))
        return sum(shard.num_bytes for shard in shards if not self._has_size(shard))

    def fill(
        self,
        dataset: Path,
        manifest: Manifest,
        splits: tuple[str, ...],
        verify: bool,
        tick: Tick | None = None,
    ) -> int:
        """Complete the copy and publish it; the caller holds the lock.

        Args:
            dataset: Where the dataset lies.
            manifest: Its manifest.
            splits: Splits to add to those that are there.
            verify: Compare checksums of shards that are copied or were left by an interrupted copy.
            tick: Called with bytes done and bytes in all after each shard.

        Returns:
            Bytes copied.

        Raises:
            ShardError: A shard is missing or is not what the manifest says.
            TierFullError: There is no space left.
        """
        published = self._complete()
        every = self._with_published(splits)
        added: list[Path] = []
        try:
            copied_bytes = self._copy_missing(
                dataset, _shards(manifest, every), verify, added, tick
            )
            self._publish(manifest, every)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._undo(added, everything=published is None)
            raise TierFullError(os.strerror(error.errno or errno.ENOSPC)) from error
        return copied_bytes

    def _copy_missing(
        self,
        dataset: Path,
        shards: tuple[ShardInfo, ...],
        verify: bool,
        added: list[Path],
        tick: Tick | None,
    ) -> int:
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._remove_leftovers(shards)
        total_bytes = sum(shard.num_bytes for shard in shards)
        done_bytes = copied_bytes = 0
        for shard in shards:
            if not self._is_intact(shard, verify):
                added.append(self.path / shard.file)
                self._copy(dataset, shard, verify)
                copied_bytes += shard.num_bytes
            done_bytes += shard.num_bytes
            if tick is not None:
                tick(done_bytes, total_bytes)
        return copied_bytes

    def _copy(self, dataset: Path, shard: ShardInfo, verify: bool) -> None:
        source, target = dataset / shard.file, self.path / shard.file
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getuid()}.{os.getpid()}")
        try:
            num_bytes, checksum = copy_verified(source, part)
            if num_bytes != shard.num_bytes or (verify and checksum != shard.xxh3_128):
                raise ShardError(
                    f"Shard {source} is damaged: expected {shard.num_bytes} bytes with checksum "
                    f"{shard.xxh3_128}, got {num_bytes} bytes with checksum {checksum}",
                    "Run `headrace verify` on the dataset; pack it again or restore the shard.",
                )
            part.replace(target)
        except FileNotFoundError as error:
            raise ShardError(
                f"Shard {source} is missing, though the manifest of the dataset names it",
                "Pack the dataset again or restore the shard.",
            ) from error
        finally:
            part.unlink(missing_ok=True)

    def _publish(self, manifest: Manifest, splits: tuple[str, ...]) -> None:
        restricted = restrict(manifest, splits)
        write_manifest(self.path, restricted)
        names = (FILE_NAME, *(shard.file for shard in restricted.shards))
        files = {name: _stat(self.path / name) for name in names}
        present = {name: file for name, file in files.items() if file is not None}
        write_record(self._complete_file, Complete(splits=splits, files=present))

    def _undo(self, added: list[Path], everything: bool) -> None:
        if everything:
            shutil.rmtree(self.path)
        for path in added:
            path.unlink(missing_ok=True)

    def _remove_leftovers(self, shards: tuple[ShardInfo, ...]) -> None:
        """Remove temporary files of dead processes; nobody else writes while the lock is held."""
        folders = {self.path, *((self.path / shard.file).parent for shard in shards)}
        for folder in folders:
            for path in folder.glob(".*"):
                if path != self._complete_file:
                    path.unlink()

    @property
    def _complete_file(self) -> Path:
        return self.path / ".complete.json"

    def _complete(self) -> Complete | None:
        try:
            return read_record(self._complete_file, Complete)
        except StepError:  # of another release: the copy is looked at shard by shard
            return None

    def _with_published(self, splits: tuple[str, ...]) -> tuple[str, ...]:
        complete = self._complete()
        return tuple(sorted({*splits, *(complete.splits if complete else ())}))

    def _has_size(self, shard: ShardInfo) -> bool:
        file = _stat(self.path / shard.file)
        return file is not None and file.num_bytes == shard.num_bytes

    def _is_intact(self, shard: ShardInfo, verify: bool) -> bool:
        if not self._has_size(shard):
            return False
        path, complete = self.path / shard.file, self._complete()
        if complete is not None and complete.files.get(shard.file) == _stat(path):
            return True
        unpublished = complete is None or shard.file not in complete.files
        if unpublished and not verify:
            return True
        return file_xxh3_128(path) == shard.xxh3_128


def restrict(manifest: Manifest, splits: Collection[str]) -> Manifest:
    """The manifest of a copy that holds some splits only."""
    return manifest.model_copy(
        update={
            "splits": {name: num for name, num in manifest.splits.items() if name in splits},
            "shards": tuple(shard for shard in manifest.shards if shard.split in splits),
            "class_counts": {
                name: counts for name, counts in manifest.class_counts.items() if name in splits
            },
        }
    )


def _shards(manifest: Manifest, splits: Collection[str]) -> tuple[ShardInfo, ...]:
    shards = tuple(shard for shard in manifest.shards if shard.split in splits)
    for shard in shards:
        path = PurePosixPath(shard.file)
        if path.is_absolute() or ".." in path.parts:
            raise ShardError(
                f"The manifest of dataset '{manifest.name}' names '{shard.file}', "
                "which is outside of its folder",
                "Pack the dataset again.",
            )
    return shards


def _stat(path: Path) -> StagedFile | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return StagedFile(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
