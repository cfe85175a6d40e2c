"""A shard that is not on a node: who is asked for it, and what happens when that goes wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.storage import peer_server
from headrace.storage.fetching import Brought
from headrace.storage.gang_store import GangStore, Traffic
from headrace.storage.manifest import Manifest
from headrace.storage.peer_group import PeerGroup, groups_of, signature
from headrace.storage.peer_server import WAIT, Request, ShardServer, Shelf
from headrace.storage.relay import Relay, relaying
from headrace.storage.store_local import LocalStore
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
def serving(group: PeerGroup, shelf: Shelf) -> Iterator[None]:
    server = ShardServer(group, shelf)
    group.announce(server.port)
    group.tell_held(shelf.files)
    try:
        yield
    finally:
        server.close()


def fetched(store: GangStore, manifest: Manifest, number: int, target: Path) -> None:
    shard = manifest.shards[number]
    assert store.download(shard.file, target) == shard.xxh3_128
    assert target.stat().st_size == shard.num_bytes
    target.unlink()


def test_one_node_fetches_for_all_what_none_holds(tmp_path, manifest, nodes):
    """Two ask at the same time for what they need; it leaves the source once."""
    source, shelf = CountedStore(tmp_path / "source"), Shelf()
    traffic = [Traffic() for _ in nodes]
    (tmp_path / "copy").mkdir()
    with (
        relaying(source, tmp_path / "copy", manifest, shelf) as relayed,
        serving(nodes[1], shelf),
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
    assert relayed.brought == traffic[1].brought == Brought(source_bytes=num_bytes)
    assert traffic[0].brought == traffic[2].brought == Brought(peer_bytes=num_bytes)
    assert not list((tmp_path / "copy").rglob("*.h5"))


def test_wrong_bytes_are_read_at_the_source_and_not_asked_for_again(
    tmp_path, manifest, nodes, caplog
):
    """Pains 27."""
    source, shelf, traffic = CountedStore(tmp_path / "source"), Shelf(), Traffic()
    for shard in manifest.shards:
        wrong = tmp_path / Path(shard.file).name
        wrong.write_bytes(bytes(shard.num_bytes))
        shelf.put(shard.file, wrong)
    store = GangStore(source, manifest.shards, nodes[0], traffic)
    with serving(nodes[2], shelf):
        fetched(store, manifest, 0, tmp_path / "target")
        fetched(store, manifest, 1, tmp_path / "target")
    assert source.fetched == [shard.file for shard in manifest.shards[:2]]
    assert traffic.brought.peer_bytes == 0
    assert caplog.text.count("Node 2 is not asked for 60 s: shards/train-00000.h5 came with") == 1


def test_one_of_the_others_fetches_for_all_what_a_node_that_has_gone_held(
    tmp_path, manifest, nodes
):
    """Pains 27, 33: else its part would leave the source once for each of them."""
    source, shelf, traffic = CountedStore(tmp_path / "source"), Shelf(), Traffic()
    far = CountedStore(tmp_path / "source")
    (tmp_path / "copy").mkdir()
    store = GangStore(source, manifest.shards, nodes[0], traffic)
    with relaying(far, tmp_path / "copy", manifest, shelf), serving(nodes[1], shelf):
        gone = Shelf()
        for shard in manifest.shards:
            gone.put(shard.file, tmp_path / "source" / shard.file)
        with serving(nodes[2], gone):
            fetched(store, manifest, 2, tmp_path / "target")
        for number in (2, 1):
            fetched(store, manifest, number, tmp_path / "target")
    # who finds out that it has gone does not ask a second one
    assert source.fetched == [manifest.shards[2].file]
    assert far.fetched == [manifest.shards[1].file]


def test_who_waits_for_a_relay_is_told_so(tmp_path, manifest, nodes, monkeypatch):
    """A fetch may take longer than a peer's patience."""
    monkeypatch.setattr(peer_server, "TELL_S", 0.05)
    source, shelf = CountedStore(tmp_path / "source"), Shelf()
    source.go.clear()
    (tmp_path / "copy").mkdir()
    shard = manifest.shards[0]
    with relaying(source, tmp_path / "copy", manifest, shelf), serving(nodes[0], shelf):
        address = (nodes[0].hosts[0], nodes[0].port_of(0))
        with socket.create_connection(address, timeout=30) as connection:
            lines = connection.makefile("rb")
            proof = signature(nodes[0].key(), lines.readline().decode().strip(), 1, shard.file)
            request = Request(node=1, file=shard.file, signature=proof)
            connection.sendall(f"{request.model_dump_json()}\n".encode())
            assert lines.readline() == lines.readline() == WAIT
            source.go.set()
            answer = lines.read().lstrip(WAIT)
    size, _, content = answer.partition(b"\n")
    assert int(size) == len(content) == shard.num_bytes
    assert content == (tmp_path / "source" / shard.file).read_bytes()


def test_a_relay_gives_shards_only(tmp_path, manifest):
    relay = Relay(CountedStore(tmp_path / "source"), tmp_path, manifest.shards)
    with pytest.raises(ValueError, match="no shard"), relay.holding("../key"):
        pass
