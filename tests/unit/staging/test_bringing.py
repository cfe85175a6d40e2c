"""Copies read while they are filled: what comes first, who brings it, what a kill leaves."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import ShardError
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.objects.store import LocalStore
from headrace.staging.bringing import Arrival, obtain
from headrace.staging.staged import StagingOptions, ensure_staged, staged
from support.staged_datasets import make_dataset, same_bytes, tier


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return make_dataset(tmp_path / "source")


def files(manifest: Manifest, *numbers: int) -> tuple[str, ...]:
    return tuple(manifest.shards[number].file for number in numbers)


def present(folder: Path) -> set[str]:
    return {f"shards/{path.name}" for path in (folder / "shards").glob("*.h5")}


def arriving(manifest: Manifest, begun) -> StagingOptions:
    """The third and second shard are needed first."""
    arrival = Arrival(order=files(manifest, 2, 1, 0), num_first=2, begun=begun)
    return StagingOptions(arrival=arrival)


def test_readers_begin_when_the_first_shards_are_there(tmp_path, manifest, monkeypatch):
    """The rest comes only after that."""
    seen: list[set[str]] = []
    begun = threading.Event()
    download = LocalStore.download

    def held_back(self, path, target, tick=None):
        if path not in files(manifest, 1, 2):
            assert begun.is_set()
        return download(self, path, target, tick)

    monkeypatch.setattr(LocalStore, "download", held_back)

    def begin(folder: Path) -> None:
        seen.append(present(folder))
        assert read_manifest(folder) == manifest
        begun.set()

    tiers = [tier(tmp_path / "tier")]
    with staged(tmp_path / "source", tiers, options=arriving(manifest, begin)) as copy:
        assert seen == [set(files(manifest, 1, 2))]
        assert copy.copied_bytes == manifest.num_bytes
        assert same_bytes(tmp_path / "source", copy.folder)
    assert not list(copy.folder.glob("shards/.*"))
    assert ensure_staged(tmp_path / "source", tiers).reused


def test_the_first_shards_alone_take_the_room_of_all(tmp_path, manifest):
    only = frozenset(files(manifest, 2))
    size = manifest.shards[0].num_bytes
    small, large = tier(tmp_path / "small", "small", budget=size), tier(tmp_path / "large", "large")
    copy = ensure_staged(tmp_path / "source", [small, large], options=StagingOptions(only=only))
    assert (copy.tier, copy.copied_bytes) == ("large", size)
    assert copy.left_out_bytes == manifest.num_bytes - size
    assert present(copy.folder) == only
    whole = ensure_staged(tmp_path / "source", [small, large])
    assert whole.folder == copy.folder
    assert whole.copied_bytes == manifest.num_bytes - size


def _die_when_read(source: Path, root: Path) -> None:
    options = arriving(read_manifest(source), lambda folder: os._exit(9))
    ensure_staged(source, [tier(root)], options=options)


def test_a_killed_staging_goes_on_from_the_shards_that_are_in(tmp_path, manifest):
    """Pains 30; one of them was damaged meanwhile: it is brought anew before anybody reads."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_die_when_read, args=(tmp_path / "source", tmp_path / "tier"))
    child.start()
    child.join(30)
    assert child.exitcode == 9
    folder = tmp_path / "tier" / "datasets" / manifest.fingerprint
    assert present(folder) == set(files(manifest, 1, 2))
    damaged = folder / manifest.shards[1].file
    damaged.write_bytes(b"?" * damaged.stat().st_size)

    def begin(found: Path) -> None:
        assert present(found) == set(files(manifest, 1, 2))
        assert damaged.read_bytes() == (tmp_path / "source" / manifest.shards[1].file).read_bytes()

    options = arriving(manifest, begin)
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")], options=options)
    assert copy.copied_bytes == manifest.num_bytes - manifest.shards[2].num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)


class CountingStore(LocalStore):
    """A folder that notes what is fetched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.fetched: list[str] = []

    def download(self, path, target, tick=None):
        self.fetched.append(path)
        return super().download(path, target, tick)


def test_who_needs_a_shard_brings_it_or_waits_but_it_comes_once(tmp_path, manifest):
    store, folder = CountingStore(tmp_path / "source"), tmp_path / "copy"
    folder.mkdir()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(obtain, store, folder), [*manifest.shards, *manifest.shards] * 2))
    assert sorted(store.fetched) == sorted(shard.file for shard in manifest.shards)
    assert present(folder) == set(store.fetched)


def test_a_shard_that_comes_damaged_is_named_and_not_kept(tmp_path, manifest):
    store, folder = LocalStore(str(tmp_path / "source")), tmp_path / "copy"
    folder.mkdir()
    path = tmp_path / "source" / manifest.shards[0].file
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ShardError, match=str(path)):
        obtain(store, folder, manifest.shards[0])
    assert not present(folder)
    tiers = [tier(tmp_path / "tier")]
    begun: list[Path] = []
    with pytest.raises(ShardError, match=str(path)):
        ensure_staged(tmp_path / "source", tiers, options=arriving(manifest, begun.append))
    assert begun
