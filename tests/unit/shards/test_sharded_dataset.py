"""Gathering over shards equals indexing one array, also for shards read from afar."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ManifestError, ShardError, StoreMissingError
from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import ShardInfo
from headrace.objects.store import LocalStore
from headrace.shards import mapped
from headrace.shards.dataset import ShardedDataset
from headrace.shards.mapped import ShardSearch
from headrace.shards.scratch import ShardScratch
from support.shards import reseal

ORDERS = (
    [0, 1, 2, 3, 4, 5, 6, 7, 8],
    [8, 0, 8, 3, 3, 5],
    [4, 5],
    [],
    [7],
)


@pytest.mark.parametrize("order", ORDERS)
def test_gather_equals_indexing_the_whole(dataset_folder: Path, order: list[int]) -> None:
    dataset = ShardedDataset(dataset_folder, "train")
    indices = np.array(order, dtype=np.int64)
    images = np.broadcast_to(np.arange(9, dtype=np.uint8)[:, None, None], (9, 2, 3))
    np.testing.assert_array_equal(dataset.gather("image", indices), images[indices])
    assert dataset.gather("image", indices).dtype == np.uint8
    assert dataset.gather("label", indices).tolist() == [i % 2 for i in order]
    assert dataset.gather("sample_id", indices).tolist() == order
    assert dataset.sources(indices) == [f"{i}.png" for i in order]
    with dataset.holding(indices):
        blobs = [item.tobytes() for item in dataset.items("blob", indices)]
    assert blobs == [bytes([i]) * i for i in order]


def test_other_splits(dataset_folder: Path) -> None:
    val = ShardedDataset(dataset_folder, "val")
    assert val.gather("sample_id", np.arange(len(val))).tolist() == [9, 10, 11]
    test = ShardedDataset(dataset_folder, "test")
    assert len(test) == 0
    assert test.gather("image", np.empty(0, dtype=np.int64)).shape == (0, 2, 3)


def test_gather_fills_the_array_given(dataset_folder: Path) -> None:
    dataset = ShardedDataset(dataset_folder, "train")
    out = np.zeros((2, 2, 3), dtype=np.uint8)
    assert dataset.gather("image", np.array([7, 2]), out) is out
    assert out[:, 0, 0].tolist() == [7, 2]


@pytest.mark.parametrize("index", [-1, 9])
def test_index_outside_the_split(dataset_folder: Path, index: int) -> None:
    with pytest.raises(IndexError, match="split 'train' of 9 samples"):
        ShardedDataset(dataset_folder, "train").gather("image", np.array([index]))


def test_wrong_names_and_layouts(dataset_folder: Path) -> None:
    with pytest.raises(ManifestError, match="Did you mean 'train'"):
        ShardedDataset(dataset_folder, "trian")
    dataset = ShardedDataset(dataset_folder, "train")
    with pytest.raises(ManifestError, match="no field 'imag'"):
        dataset.gather("imag", np.array([0]))
    with pytest.raises(ShardError, match="Use `items`"):
        dataset.gather("blob", np.array([0]))
    with pytest.raises(ShardError, match="fixed shape"):
        dataset.items("image", np.array([0]))


def test_shard_that_is_not_what_the_manifest_says(dataset_folder: Path) -> None:
    with h5py.File(dataset_folder / "shards/train-00001.h5", "r+") as file:
        del file["fields/image"]
        file["fields/image"] = np.zeros((4, 3, 3), dtype=np.uint8)
    reseal(dataset_folder, "shards/train-00001.h5")
    dataset = ShardedDataset(dataset_folder, "train")
    assert dataset.gather("image", np.array([0])).shape == (1, 2, 3)
    for read in (dataset.gather, dataset.rows):
        with pytest.raises(ShardError, match=r"train-00001\.h5.*the manifest says"):
            read("image", np.array([5]))


@pytest.mark.parametrize(
    ("method", "opened_before"),
    [("fork", False), ("fork", True), ("spawn", True), ("forkserver", True)],
)
def test_same_samples_in_children(dataset_folder: Path, method: str, opened_before: bool) -> None:
    """Pains 24: HDF5 opened before a fork gave wrong data or pickling errors."""
    dataset = ShardedDataset(dataset_folder, "train")
    indices = np.array([8, 1, 5, 0])
    expected = ShardedDataset(dataset_folder, "train").gather("image", indices)
    if opened_before:
        np.testing.assert_array_equal(dataset.gather("image", indices), expected)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for found in pool.starmap(dataset.gather, [("image", indices)] * 4, chunksize=1):
            np.testing.assert_array_equal(found, expected)


def test_inherited_by_fork_without_pickling(dataset_folder: Path) -> None:
    """Pains 24: the open reader itself, as DataLoader workers inherit it."""
    dataset = ShardedDataset(dataset_folder, "train")
    indices = np.arange(9)
    expected = dataset.gather("image", indices)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [
        context.Process(target=lambda: queue.put(dataset.gather("image", indices)))
        for _ in range(2)
    ]
    for child in children:
        child.start()
    for _ in children:
        np.testing.assert_array_equal(queue.get(), expected)
    for child in children:
        child.join(30)
        assert child.exitcode == 0


def test_pickle_carries_no_samples(dataset_folder: Path) -> None:
    dataset = ShardedDataset(dataset_folder, "train")
    dataset.gather("image", np.arange(9))
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(
        again.gather("image", np.arange(9)), dataset.gather("image", np.arange(9))
    )
    copies = pickle.loads(pickle.dumps(dataset))._mapped._readers
    assert all(reader._map is None for reader in copies)


sizes_of_shards = st.lists(st.integers(0, 40), min_size=0, max_size=12)


@settings(max_examples=60, deadline=None)
@given(sizes=sizes_of_shards, most=st.sampled_from([2, 2**20]))
def test_every_sample_is_found_in_its_shard(sizes: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_MAX_SPANS", most)
        found = ShardSearch(np.cumsum(sizes, dtype=np.int64))(np.arange(sum(sizes)))
    assert found.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_equal_shards_need_no_search() -> None:
    assert ShardSearch(np.array([100, 200, 260]))._firsts is not None
    assert ShardSearch(np.array([0, 100, 200]))._firsts is None


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
