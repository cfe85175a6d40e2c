"""Shards of a dataset one after the other as local files, wherever the dataset lies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StorageFullError
from headrace.files.checksums import file_xxh3_128
from headrace.files.machine import free_bytes
from headrace.files.manifest import ShardInfo
from headrace.objects.protocol import Store
from headrace.objects.store import is_remote, open_store
from headrace.recipe.site import StoreOptions

Tick = Callable[[int], None]


@contextmanager
def copies_of(location: str, options: StoreOptions | None) -> Iterator[Copies]:
    """The shards of a dataset in a folder, or at a URL, which `options` say how to reach."""
    store = open_store(location, options)
    if not is_remote(location):
        yield Copies(store, None)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield Copies(store, Path(folder))


class Copies:
    """Gives the shards of one dataset; those that are not local are brought to `folder` in turn."""

    def __init__(self, store: Store, folder: Path | None) -> None:
        self._store = store
        self._folder = folder

    def num_bytes(self, shard: ShardInfo) -> int | None:
        """Size of a shard's file; None when there is none."""
        found = self._store.stat(shard.file)
        return found.num_bytes if found is not None else None

    def read(self, shard: ShardInfo, tick: Tick | None) -> tuple[Path, str]:
        """The file of a shard, read to its end, and the checksum of what was read.

        A file that was brought is gone when the next shard is asked for.

        Raises:
            DataError: It vanished or changed meanwhile.
            StoreError: The store kept failing.
            StorageFullError: There is no room for it.
        """
        if self._folder is None:
            path = Path(self._store.url) / shard.file
            return path, file_xxh3_128(path, tick)
        path = self._folder / "shard.h5"
        path.unlink(missing_ok=True)
        free = free_bytes(self._folder)
        if free < shard.num_bytes:
            raise StorageFullError(
                f"No room in {self._folder} for {shard.file}: {shard.num_bytes:,} bytes "
                f"needed, {free:,} bytes free",
                "Free some space there, or name another folder for temporary files in TMPDIR.",
            )
        return path, self._store.download(shard.file, path, tick)
