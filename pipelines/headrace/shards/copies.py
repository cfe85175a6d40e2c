"""Shards of a dataset one after the other as local files, wherever the dataset lies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.errors import StorageFullError
from headrace.files.checksums import file_xxh3_128
from headrace.files.machine import free_bytes
from headrace.files.manifest import ShardInfo
from headrace.objects.protocol import Store
from headrace.objects.store import is_remote, open_store
from headrace.recipe.site import StoreOptions

Tick = Callable[[int], None]


class Copy(NamedTuple):
    """A shard as a local file."""

    path: Path
    """The file; gone when the next shard is asked for, unless it is the dataset's own."""
    xxh3_128: str
    """Checksum of what was read."""


class Copies(Protocol):
    """Gives the shards of one dataset."""

    def num_bytes(self, shard: ShardInfo) -> int | None:
        """Size of a shard's file; None when there is none."""
        ...

    def read(self, shard: ShardInfo, tick: Tick | None) -> Copy:
        """The shard, read to its end.

        Raises:
            DataError: It vanished or changed meanwhile.
            StoreError: S3 kept failing.
            StorageFullError: There is no room for it.
        """
        ...


@contextmanager
def copies_of(location: str, options: StoreOptions | None) -> Iterator[Copies]:
    """The shards of a dataset.

    From S3 each is brought to a temporary folder while it is looked at: one at a time.

    Args:
        location: Folder or URL of the dataset.
        options: How to reach S3.
    """
    store = open_store(location, options)
    if not is_remote(location):
        yield _Local(Path(store.url))
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield _Remote(store, Path(folder))


class _Local:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def num_bytes(self, shard: ShardInfo) -> int | None:
        path = self._folder / shard.file
        return path.stat().st_size if path.is_file() else None

    def read(self, shard: ShardInfo, tick: Tick | None) -> Copy:
        path = self._folder / shard.file
        return Copy(path, file_xxh3_128(path, tick))


class _Remote:
    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._path = folder / "shard.h5"

    def num_bytes(self, shard: ShardInfo) -> int | None:
        found = self._store.stat(shard.file)
        return found.num_bytes if found is not None else None

    def read(self, shard: ShardInfo, tick: Tick | None) -> Copy:
        self._path.unlink(missing_ok=True)
        free = free_bytes(self._path.parent)
        if free < shard.num_bytes:
            raise StorageFullError(
                f"No room in {self._path.parent} for {shard.file}: {shard.num_bytes:,} bytes "
                f"needed, {free:,} bytes free",
                "Free some space there, or name another folder for temporary files in TMPDIR.",
            )
        return Copy(self._path, self._store.download(shard.file, self._path, tick))
