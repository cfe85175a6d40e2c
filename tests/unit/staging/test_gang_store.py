"""Copies that take the first shards first, and shards that a node asks other nodes for."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import ShardError, StorageFullError
from headrace.files import machine
from headrace.files.manifest import Manifest
from headrace.objects.store import LocalStore
from headrace.shards.scratch import SCRATCH, ShardScratch
from headrace.staging import peers
from headrace.staging.gang_member import Relay
from headrace.staging.gang_store import Brought, GangStore, Traffic
from headrace.staging.peers import Holding, Peer, PeerGroup, ShardServer, groups_of
from headrace.staging.staged import ensure_staged
from headrace.staging.tier_choice import StagingOptions
from support.staged_datasets import make_dataset, same_bytes, tier


class CountedStore(LocalStore):
    """Notes what is fetched; holds it back until `go` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.fetched: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def download(self, path, target, tick=None):
        assert self.go.wait(90)
        self.fetched.append(path)
        return super().download(path, target, tick)


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return make_dataset(tmp_path / "source")


@pytest.fixture
def nodes(tmp_path) -> list[PeerGroup]:
    found = groups_of(tmp_path, ["127.0.0.1", "127.0.0.2", "127.0.0.3"], "auto")
    return [group for group in found if group is not None]


@contextmanager
def serving(group: PeerGroup, holding: Holding, files: tuple[str, ...] = ()) -> Iterator[None]:
    server = ShardServer(group, holding)
    group.announce(server.server_port, files, is_staged=True)
    try:
        yield
    finally:
        server.close()


@contextmanager
def relaying(source: LocalStore, folder: Path, manifest: Manifest) -> Iterator[Relay]:
    folder.mkdir()
    relay = Relay(source, folder, manifest.shards, ())
    try:
        yield relay
    finally:
        relay.close()


def copy_of(folder: Path, manifest: Manifest, *, wrong: bool = False) -> Relay:
    """A node that holds all shards."""
    for shard in manifest.shards:
        path = folder / shard.file
        path.parent.mkdir(parents=True, exist_ok=True)
        right = (folder.parent / "source" / shard.file).read_bytes()
        path.write_bytes(bytes(shard.num_bytes) if wrong else right)
    return Relay(LocalStore("none"), folder, manifest.shards, files_of(manifest))


def files_of(manifest: Manifest) -> tuple[str, ...]:
    return tuple(shard.file for shard in manifest.shards)


def fetched(store: GangStore, manifest: Manifest, number: int, target: Path) -> None:
    shard = manifest.shards[number]
    assert store.download(shard.file, target) == shard.xxh3_128
    assert target.stat().st_size == shard.num_bytes
    target.unlink()


def test_one_node_fetches_for_all_what_none_holds(tmp_path, manifest, nodes):
    """Two ask at the same time for what they need; it leaves the source once."""
    source = CountedStore(tmp_path / "source")
    traffic = [Traffic() for _ in nodes]
    with (
        relaying(source, tmp_path / "copy", manifest) as relay,
        serving(nodes[1], relay.holding),
        ThreadPoolExecutor(2) as others,
    ):
        stores = [
            GangStore(source, manifest.shards, *each) for each in zip(nodes, traffic, strict=True)
        ]
        asked = [
            others.submit(fetched, stores[node], manifest, 1, tmp_path / f"{node}")
            for node in (0, 2)
        ]
        for each in asked:
            each.result()
        assert source.fetched == [manifest.shards[1].file]
        fetched(stores[1], manifest, 1, tmp_path / "own")  # the one that is asked asks nobody
    num_bytes = manifest.shards[1].num_bytes
    assert relay.traffic.brought == traffic[1].brought == Brought(source_bytes=num_bytes)
    assert traffic[0].brought == traffic[2].brought == Brought(peer_bytes=num_bytes)
    assert not list((tmp_path / "copy").rglob("*.h5"))


def test_wrong_bytes_are_read_at_the_source_and_not_asked_for_again(
    tmp_path, manifest, nodes, caplog
):
    """Pains 27."""
    source, traffic = CountedStore(tmp_path / "source"), Traffic()
    liar = copy_of(tmp_path / "wrong", manifest, wrong=True)
    store = GangStore(source, manifest.shards, nodes[0], traffic)
    with serving(nodes[2], liar.holding, files_of(manifest)):
        fetched(store, manifest, 0, tmp_path / "target")
        fetched(store, manifest, 1, tmp_path / "target")
    assert source.fetched == [shard.file for shard in manifest.shards[:2]]
    assert traffic.brought.peer_bytes == 0
    assert caplog.text.count("Node 2 is not asked for 60 s: shards/train-00000.h5 came with") == 1


def test_one_of_the_others_fetches_for_all_what_a_node_that_has_gone_held(
    tmp_path, manifest, nodes
):
    """Pains 27, 33: else its part would leave the source once for each of them."""
    source, traffic = CountedStore(tmp_path / "source"), Traffic()
    far = CountedStore(tmp_path / "source")
    store = GangStore(source, manifest.shards, nodes[0], traffic)
    gone = copy_of(tmp_path / "gone", manifest)
    with (
        relaying(far, tmp_path / "copy", manifest) as relay,
        serving(nodes[1], relay.holding),
    ):
        with serving(nodes[2], gone.holding, files_of(manifest)):
            fetched(store, manifest, 2, tmp_path / "target")
        for number in (2, 1):
            fetched(store, manifest, number, tmp_path / "target")
    # who finds out that it has gone does not ask a second one
    assert source.fetched == [manifest.shards[2].file]
    assert far.fetched == [manifest.shards[1].file]


def test_who_waits_for_a_relay_is_told_so(tmp_path, manifest, nodes, monkeypatch):
    """A fetch may take longer than a peer's patience."""
    monkeypatch.setattr(peers, "TELL_S", 0.05)
    monkeypatch.setattr(peers, "PATIENCE_S", 1.0)
    source = CountedStore(tmp_path / "source")
    source.go.clear()
    shard, target = manifest.shards[0], tmp_path / "target"
    told: list[int] = []

    def tick(num_bytes: int) -> None:
        told.append(num_bytes)
        if len(told) > 40:
            source.go.set()

    with (
        relaying(source, tmp_path / "copy", manifest) as relay,
        serving(nodes[0], relay.holding),
    ):
        assert Peer(nodes[1], 0, nodes[0].notice_of(0).port).take(shard, target, tick)
    assert set(told[:40]) == {0}
    assert target.read_bytes() == (tmp_path / "source" / shard.file).read_bytes()


def test_a_relay_gives_shards_only(tmp_path, manifest):
    relay = Relay(CountedStore(tmp_path / "source"), tmp_path, manifest.shards, ())
    with pytest.raises(KeyError), relay.holding("../key"):
        pass


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
