"""Nodes that pass shards on: each leaves the shared storage once, faults cost time only.

The nodes are threads or processes with a tier folder each; they meet at real sockets.
"""

import errno
import multiprocessing
import os
import signal
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.objects.store import LocalStore
from headrace.staging import peers
from headrace.staging.bringing import Tick
from headrace.staging.gang_member import Relay, holds_nothing, joining
from headrace.staging.peers import Peer, PeerGroup, PeerLostError, groups_of
from headrace.staging.staged import StagedCopy, ensure_staged
from headrace.staging.tier_choice import StagingOptions
from support.staged_datasets import counted_reads, make_dataset, same_bytes, tier

HOST = "127.0.0.1"


@pytest.fixture
def reads(monkeypatch) -> Counter[str]:
    """How often each shard was read where the dataset lies."""
    return counted_reads(monkeypatch)


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE_S", 0.4)


def groups(folder: Path, count: int) -> list[PeerGroup]:
    """Nodes that share this host, which `groups_of` does not have pass shards on."""
    names = [f"host-{number}" for number in range(count)]
    found = groups_of(folder, names, "auto")
    return [replace(group, hosts=(HOST,) * count) for group in found if group is not None]


def stage(home: Path, group: PeerGroup, tick: Tick | None = None) -> StagedCopy:
    tiers = [tier(home / f"tier-{group.index}")]
    return ensure_staged(home / "source", tiers, tick=tick, options=StagingOptions(group=group))


@pytest.mark.parametrize("count", [2, 3])
def test_each_shard_leaves_the_source_once(tmp_path, reads, count):
    manifest = make_dataset(tmp_path / "source", 3_000_000)
    with ThreadPoolExecutor(count) as nodes:
        copies = list(nodes.map(lambda group: stage(tmp_path, group), groups(tmp_path, count)))
    assert reads == {shard.file: 1 for shard in manifest.shards}
    assert sum(copy.source_bytes for copy in copies) == manifest.num_bytes
    for copy in copies:
        assert copy.source_bytes > 0
        assert copy.copied_bytes == manifest.num_bytes
        assert same_bytes(tmp_path / "source", copy.folder)


def test_node_that_has_all_serves_a_new_one(tmp_path, reads):
    manifest = make_dataset(tmp_path / "source")
    ensure_staged(tmp_path / "source", [tier(tmp_path / "tier-1")])
    reads.clear()
    told: list[tuple[int, int]] = []
    first, second = groups(tmp_path, 2)
    with ThreadPoolExecutor(1) as node:
        staging = node.submit(stage, tmp_path, first)
        old = stage(tmp_path, second, tick=lambda *progress: told.append(progress))
        new = staging.result()
    assert not reads
    assert set(told) == {(manifest.num_bytes, manifest.num_bytes)}
    assert (old.reused, old.reused_bytes, old.copied_bytes) == (True, manifest.num_bytes, 0)
    assert (new.peer_bytes, new.source_bytes) == (manifest.num_bytes, 0)
    assert same_bytes(tmp_path / "source", new.folder)


def test_wrong_bytes_are_read_again_at_the_source(tmp_path, caplog):
    """Pains 27: what a node keeps is what the manifest says, whoever it came from."""
    manifest = make_dataset(tmp_path / "source")
    liar, group = groups(tmp_path, 2)
    files = [shard.file for shard in manifest.shards]
    for shard in manifest.shards:
        wrong = tmp_path / "wrong" / shard.file
        wrong.parent.mkdir(parents=True, exist_ok=True)
        wrong.write_bytes(bytes(shard.num_bytes))
    lying = Relay(LocalStore("none"), tmp_path / "wrong", manifest.shards, files)
    with joining(liar) as member, ThreadPoolExecutor(1) as nodes:
        staging = nodes.submit(stage, tmp_path, group)
        member.serve_to_the_end(lying.holding, files, lambda: None)
        copy = staging.result()
    assert (copy.peer_bytes, copy.source_bytes) == (0, manifest.num_bytes)
    assert same_bytes(tmp_path / "source", copy.folder)
    assert "Node 0 is not asked for 60 s" in caplog.text


@pytest.mark.parametrize("comes", [True, False])
def test_nobody_waits_for_a_peer_that_does_nothing(tmp_path, impatient, comes):
    manifest = make_dataset(tmp_path / "source")
    idle, group = groups(tmp_path, 2)
    with joining(idle if comes else None) as member, ThreadPoolExecutor(1) as nodes:
        staging = nodes.submit(stage, tmp_path, group)
        if member is not None:
            member.serve_to_the_end(holds_nothing, (), lambda: None)
        copy = staging.result()
    assert copy.source_bytes == manifest.num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)


def _stage_until_killed(home: Path, group: PeerGroup) -> None:
    """Ends after its first shard, in the middle of another."""
    download, begun = LocalStore.download, []

    def deadly(self, path, target, tick):
        begun.append(path)
        if len(begun) > 1:
            target.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return download(self, path, target, tick)

    LocalStore.download = deadly
    stage(home, group)


def test_killed_peer_is_done_without(tmp_path):
    """Pains 27."""
    manifest = make_dataset(tmp_path / "source", 3_000_000)
    first, second, third = groups(tmp_path, 3)
    victim = multiprocessing.get_context("fork").Process(
        target=_stage_until_killed, args=(tmp_path, first)
    )
    victim.start()
    with ThreadPoolExecutor(2) as nodes:
        copies = list(nodes.map(lambda group: stage(tmp_path, group), (second, third)))
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    for copy in copies:
        assert copy.copied_bytes == manifest.num_bytes
        assert same_bytes(tmp_path / "source", copy.folder)


def _asked(port: int, request: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(request)
        return connection.makefile("rb").read()


def test_strangers_are_given_nothing(tmp_path):
    shard = make_dataset(tmp_path / "source").shards[0]
    folder, files = tmp_path / "source", (shard.file,)
    group, other = groups(tmp_path, 2)
    own = Relay(LocalStore("none"), folder, (shard,), files)
    with joining(group) as member:
        other.announce(0, (), is_staged=True)
        member.serve_to_the_end(own.holding, files, lambda: None)
        port = group.notice_of(0).port
        for proof in (b"", b"Authorization: " + b"0" * 64 + b"\r\n"):
            request = b"GET /" + shard.file.encode() + b" HTTP/1.1\r\n" + proof + b"\r\n"
            assert _asked(port, request) == b"HTTP/1.0 403 Forbidden\r\n\r\n"
        peer, target = Peer(other, 0, port), tmp_path / "target"
        outside = shard.model_copy(update={"file": "../../etc/passwd"})
        assert not peer.take(outside, target, lambda _: None)
        assert not target.exists()
        assert peer.take(shard, target, lambda _: None)
        assert target.read_bytes() == (folder / shard.file).read_bytes()
    with pytest.raises(PeerLostError, match="refused"):
        peer.take(shard, target, lambda _: None)


def test_a_node_that_cannot_let_a_peer_in_lets_in_the_next(tmp_path, monkeypatch):
    """As with too many open files, or a peer that has hung up in between."""
    group, other = groups(tmp_path, 2)
    errors = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError("hung up")]
    accept = socket.socket.accept

    def accept_later(listener: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    with joining(group) as member:
        other.announce(0, (), is_staged=True)
        member.serve_to_the_end(holds_nothing, (), lambda: None)
        assert Peer(other, 0, group.notice_of(0).port).is_alive()
    assert not errors


def test_key_is_private(tmp_path):
    group, _ = groups(tmp_path, 2)
    assert group.folder.stat().st_mode & 0o777 == 0o700
    files = list(group.folder.iterdir())
    assert files
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_nodes_take_turns():
    group = PeerGroup(folder=Path("x"), hosts=("a", "b", "c"), index=1)
    assert [group.order(number) for number in (0, 1, 5)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert group.others == (2, 0)


def test_nodes_of_their_own_hosts_meet_in_one_folder(tmp_path):
    groups = groups_of(tmp_path, ["10.0.0.1", "10.0.0.2"], "auto")
    assert [group.index for group in groups] == [0, 1]
    assert {group.hosts for group in groups} == {("10.0.0.1", "10.0.0.2")}
    assert len({group.sign("file") for group in groups}) == 1


@pytest.mark.parametrize(
    ("hosts", "mode"),
    [(["a"], "auto"), (["a", "a"], "auto"), (["a", "b", "b"], "auto"), (["a", "b"], "never")],
)
def test_others_stage_alone(tmp_path, hosts, mode):
    assert groups_of(tmp_path, hosts, mode) == [None] * len(hosts)
    assert not list(tmp_path.iterdir())


def _parts(num_shards: int, rooms: list[int]) -> list[set[int]]:
    """Numbers of the shards that each node takes, when it has room for so many."""
    hosts = tuple(f"host-{index}" for index in range(len(rooms)))
    groups = [PeerGroup(folder=Path("x"), hosts=hosts, index=index) for index in range(len(rooms))]
    return [
        set(sorted(range(num_shards), key=group.part)[:room])
        for group, room in zip(groups, rooms, strict=True)
    ]


@settings(max_examples=30)
@given(st.integers(1, 40), st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_two_nodes_hold_together_as_much_as_they_can(num_shards, rooms):
    held = set().union(*_parts(num_shards, rooms))
    assert len(held) == min(num_shards, sum(min(room, num_shards) for room in rooms))


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 10))
def test_nodes_of_one_size_hold_together_as_much_as_they_can(count, turns, room):
    held = set().union(*_parts(count * turns, [room] * count))
    assert len(held) == min(count * turns, room * count)


def test_what_others_lack_is_taken_from_the_end():
    """The second of three nodes has room for more than its turns."""
    assert _parts(9, [2, 6, 2]) == [{0, 3}, {1, 4, 7, 8, 6, 5}, {2, 5}]
