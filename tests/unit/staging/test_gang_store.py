"""A shard that is not on a node: who is asked for it, and what happens when that goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.files.manifest import Manifest
from headrace.objects.store import LocalStore
from headrace.staging import peers
from headrace.staging.gang_member import Relay
from headrace.staging.gang_store import Brought, GangStore, Traffic
from headrace.staging.peers import Holding, Peer, PeerGroup, ShardServer, groups_of
from support.staged_datasets import make_dataset


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
