"""Shards from afar: the bound, who goes first, sharing on a node, what dead processes left."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from headrace.errors import ShardError, StoreMissingError
from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import ShardInfo
from headrace.objects.store import LocalStore
from headrace.shards.scratch import ShardScratch

NUM_SHARDS = 6


@pytest.fixture
def store(tmp_path) -> LocalStore:
    (tmp_path / "afar" / "shards").mkdir(parents=True)
    for number in range(NUM_SHARDS):
        (tmp_path / "afar" / "shards" / f"train-{number}.h5").write_bytes(bytes([number]) * 100)
    return LocalStore(str(tmp_path / "afar"))


def shards(store: LocalStore) -> list[ShardInfo]:
    return [
        ShardInfo(
            file=f"shards/train-{number}.h5",
            split="train",
            num_samples=10,
            num_bytes=100,
            xxh3_128=file_xxh3_128(Path(store.url) / f"shards/train-{number}.h5"),
        )
        for number in range(NUM_SHARDS)
    ]


def make(store: LocalStore, room: int = 3, evicted: list[int] | None = None) -> ShardScratch:
    gone = evicted if evicted is not None else []
    folder = Path(store.url).with_name("scratch")
    return ShardScratch(store, folder, shards(store), room, gone.append)


def fetch_ahead(scratch: ShardScratch, number: int) -> bool:
    """Whether a shard was fetched ahead."""
    claimed = scratch.claim_ahead([number])
    if claimed is not None:
        scratch.fetch_claimed(claimed)
    return claimed is not None


def test_what_is_needed_last_goes_first(store):
    evicted: list[int] = []
    scratch = make(store, evicted=evicted)
    scratch.needs({0: 0, 1: 5, 2: 2, 3: 3})
    for number in range(3):
        assert fetch_ahead(scratch, number)
    assert fetch_ahead(scratch, 3)
    assert evicted == [1]
    assert not fetch_ahead(scratch, 1)
    assert not fetch_ahead(scratch, 5)
    with scratch.holding([0, 4]) as paths:
        assert {n: path.read_bytes()[0] for n, path in paths.items()} == {0: 0, 4: 4}
    assert evicted == [1, 3]
    assert scratch.max_held == 3
    assert [number for number in range(6) if scratch.holds(number)] == [0, 2, 4]
    scratch.close()


def test_no_more_than_there_is_room_for(store):
    scratch = make(store, room=2)
    with pytest.raises(ShardError, match="samples of 3 shards, more than the 2"):
        scratch.holding([0, 1, 2]).__enter__()
    with scratch.holding([0, 1]):
        assert not fetch_ahead(scratch, 2)
    scratch.needs({2: 0})
    assert fetch_ahead(scratch, 2)


def test_threads_wait_for_room_and_none_for_ever(store):
    scratch = make(store, room=2)
    found: list[bytes] = []

    def read(first: int) -> None:
        for turn in range(20):
            with scratch.holding([(first + turn) % 6, (first + turn + 1) % 6]) as paths:
                found.extend(path.read_bytes()[:1] for path in paths.values())

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(found) == 4 * 20 * 2
    assert scratch.max_held <= 2


def test_processes_of_a_node_share_what_they_hold(store):
    first, second = make(store), make(store)
    with first.holding([0]) as mine, second.holding([0]) as theirs:
        assert mine[0] != theirs[0]
        assert mine[0].samefile(theirs[0])
    assert (first.num_fetched, second.num_fetched, second.num_linked) == (1, 0, 1)
    first.close()
    with second.holding([0]) as paths:
        assert paths[0].read_bytes() == bytes(100)


def _leave(store: LocalStore) -> None:
    with make(store).holding([0]):
        import os

        os._exit(9)


def test_what_a_dead_process_left_is_removed(store):
    """Pains 27: what a crash leaves does not add up."""
    child = multiprocessing.get_context("fork").Process(target=_leave, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 9
    root = Path(store.url).with_name("scratch")
    (left,) = root.glob("*/train-0.h5")
    scratch = make(store)
    assert not left.exists()
    scratch.close()
    assert not list(root.glob("*/*.h5"))


def test_faults_of_the_store_leave_nothing(store):
    scratch = make(store)
    (Path(store.url) / "shards/train-1.h5").unlink()
    (Path(store.url) / "shards/train-2.h5").write_bytes(b"other")
    with pytest.raises(StoreMissingError):
        fetch_ahead(scratch, 1)
    with pytest.raises(ShardError, match=r"train-2\.h5 came with checksum"):
        fetch_ahead(scratch, 2)
    assert not scratch.holds(1)
    assert not scratch.holds(2)
    assert fetch_ahead(scratch, 3)
