"""A copy that takes the shards that are needed first, and the others while it is read."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import ShardError, StorageFullError
from headrace.files import machine
from headrace.files.manifest import Manifest
from headrace.objects.store import LocalStore
from headrace.shards.scratch import SCRATCH, ShardScratch
from headrace.staging.staged import StagingOptions, ensure_staged
from support.staged_datasets import make_dataset, same_bytes, tier


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return make_dataset(tmp_path / "source")


def files(manifest: Manifest, *numbers: int) -> frozenset[str]:
    return frozenset(manifest.shards[number].file for number in numbers)


def present(folder: Path) -> set[str]:
    return {f"shards/{path.name}" for path in (folder / "shards").glob("*.h5")}


class CountingStore(LocalStore):
    """A folder that notes what is fetched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.fetched: list[str] = []

    def download(self, path, target, tick=None):
        self.fetched.append(path)
        return super().download(path, target, tick)


def with_room_for_all(manifest: Manifest, folder: Path, store: LocalStore) -> ShardScratch:
    """What a process that reads a copy brings there."""
    return ShardScratch(store, folder / SCRATCH, manifest.shards, None, lambda _: None)


def test_the_first_shards_alone_take_the_room_of_all(tmp_path, manifest):
    only = files(manifest, 2)
    size = manifest.shards[0].num_bytes
    small, large = tier(tmp_path / "small", "small", budget=size), tier(tmp_path / "large", "large")
    copy = ensure_staged(tmp_path / "source", [small, large], options=StagingOptions(only=only))
    assert (copy.tier, copy.copied_bytes) == ("large", size)
    assert copy.left_out_bytes == manifest.num_bytes - size
    assert present(copy.folder) == only
    whole = ensure_staged(tmp_path / "source", [small, large])
    assert whole.folder == copy.folder
    assert whole.copied_bytes == manifest.num_bytes - size


def test_processes_and_threads_that_need_a_shard_bring_it_once_and_it_stays(tmp_path, manifest):
    folder = tmp_path / "copy"
    (folder / "shards").mkdir(parents=True)
    shutil.copy(tmp_path / "source" / "manifest.json", folder)
    count = len(manifest.shards)
    stores = [CountingStore(tmp_path / "source") for _ in range(2)]
    readers = [with_room_for_all(manifest, folder, store) for store in stores]

    def read(turn: int) -> None:
        numbers = [turn % count, (turn + 1) % count]
        with readers[turn % 2].holding(numbers) as paths:
            assert [str(path.relative_to(folder)) for path in paths.values()] == [
                manifest.shards[number].file for number in sorted(numbers)
            ]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(24)))
    for reader in readers:
        reader.close()
    fetched = stores[0].fetched + stores[1].fetched
    assert sorted(fetched) == sorted(present(folder)) == sorted(files(manifest, *range(count)))
    assert same_bytes(tmp_path / "source", folder)


def _bring_and_die(manifest: Manifest, folder: Path, source: Path) -> None:
    with with_room_for_all(manifest, folder, LocalStore(str(source))).holding([1, 2]):
        os._exit(9)


def test_what_a_killed_reader_brought_is_checked_and_kept(tmp_path, manifest):
    """Pains 30; one of them was damaged meanwhile: it is brought anew before anybody reads."""
    source, tiers = tmp_path / "source", [tier(tmp_path / "tier")]
    first = ensure_staged(source, tiers, options=StagingOptions(only=files(manifest, 0)))
    arguments = (manifest, first.folder, source)
    child = multiprocessing.get_context("fork").Process(target=_bring_and_die, args=arguments)
    child.start()
    child.join(30)
    assert child.exitcode == 9
    damaged = first.folder / manifest.shards[1].file
    damaged.write_bytes(b"?" * damaged.stat().st_size)
    again = ensure_staged(source, tiers, options=StagingOptions(only=files(manifest, 0)))
    assert again.copied_bytes == manifest.shards[1].num_bytes
    assert present(first.folder) == files(manifest, 0, 1, 2)
    whole = ensure_staged(source, tiers)
    assert whole.reused_bytes == sum(shard.num_bytes for shard in manifest.shards[:3])
    assert same_bytes(source, whole.folder)


def test_a_step_that_wants_all_completes_a_copy_that_is_being_read(tmp_path, manifest):
    """Neither takes from the other what it is writing."""
    source, tiers = tmp_path / "source", [tier(tmp_path / "tier")]
    copy = ensure_staged(source, tiers, options=StagingOptions(only=files(manifest, 0)))
    begun, staged = threading.Event(), threading.Event()

    class SlowStore(LocalStore):
        def download(self, path, target, tick=None):
            checksum = super().download(path, target, tick)
            begun.set()
            assert staged.wait(30)
            assert target.exists()
            return checksum

    reader = with_room_for_all(manifest, copy.folder, SlowStore(str(source)))
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(lambda: reader.holding([1]).__enter__())
        assert begun.wait(30)
        assert ensure_staged(source, tiers).left_out_bytes == 0
        staged.set()
        assert holding.result()[1].exists()
    assert same_bytes(source, copy.folder)


def test_a_shard_that_comes_damaged_is_named_and_not_kept(tmp_path, manifest):
    folder = tmp_path / "copy"
    (folder / "shards").mkdir(parents=True)
    path = tmp_path / "source" / manifest.shards[0].file
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    reader = with_room_for_all(manifest, folder, LocalStore(str(tmp_path / "source")))
    with pytest.raises(ShardError, match=f"{manifest.shards[0].file} came with checksum"):
        reader.holding([0]).__enter__()
    assert not present(folder)


def test_a_disk_that_is_full_is_told_before_anything_is_read(tmp_path, manifest, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda _: manifest.num_bytes - 1)
    with pytest.raises(StorageFullError):
        with_room_for_all(manifest, tmp_path / "copy", LocalStore(str(tmp_path / "source")))
