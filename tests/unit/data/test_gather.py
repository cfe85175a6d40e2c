"""Batches in reused memory: right content, and nobody's batch ever changes."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.data.gather import Buffers, Gatherer
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset

NUM_SAMPLES = 40
LARGE = 2**17


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gather") / "dataset"
    numbers = np.arange(NUM_SAMPLES)
    fields = {
        "image": np.repeat(numbers.astype(np.uint8), LARGE // 8).reshape(NUM_SAMPLES, -1),
        "odd": np.arange(NUM_SAMPLES * 7, dtype=np.uint8).reshape(NUM_SAMPLES, 7),
        "pair": np.arange(NUM_SAMPLES * 2, dtype=np.float32).reshape(NUM_SAMPLES, 2, 1),
        "wide": np.arange(NUM_SAMPLES * 10_000, dtype=np.int64).reshape(NUM_SAMPLES, 100, 100),
        "prime": np.arange(NUM_SAMPLES * 65_537, dtype=np.uint8).reshape(NUM_SAMPLES, 65_537),
        "half": numbers.astype(np.float16),
        "spectrum": (numbers + 1j).astype(np.complex64),
        "flag": numbers % 2 == 0,
        "nothing": np.empty((NUM_SAMPLES, 0), dtype=np.int32),
        "label": numbers % 3,
    }
    write_dataset(folder, fields, splits={"train": NUM_SAMPLES}, shard_samples=9)
    return folder


def test_every_dtype_equals_indexing_the_whole(folder: Path) -> None:
    dataset = ShardedDataset(folder, "train")
    gatherer = pickle.loads(pickle.dumps(Gatherer(dataset)))
    indices = np.array([39, 0, 9, 9, 8, 17, 35])
    assert len(dataset.manifest.fields) > 5
    for info in dataset.manifest.fields:
        found = gatherer.gather([info], indices)[info.name]
        np.testing.assert_array_equal(found.numpy(), dataset.gather(info.name, indices))
        assert found.numpy().dtype == np.dtype(info.dtype)
        assert found.is_contiguous()
        nothing = gatherer.gather([info], indices[:0])[info.name]
        assert nothing.shape == (0, *info.shape)


@pytest.mark.parametrize("index", [-1, NUM_SAMPLES, -(2**62)])
def test_an_index_outside_the_split_is_refused(folder: Path, index: int) -> None:
    dataset = ShardedDataset(folder, "train")
    with pytest.raises(IndexError, match="split 'train' of 40 samples"):
        Gatherer(dataset).gather([dataset.field("image")], np.array([3, index]))


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_that_are_kept_never_change(folder: Path, prefetch: int) -> None:
    order = TrainOrder(num_samples=NUM_SAMPLES, seed=0, global_batch_size=8)
    loader = BatchLoader(ShardedDataset(folder, "train"), order, prefetch=prefetch)
    kept = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            ids = batch["sample_id"].to(torch.uint8)
            if number % 2:  # a view, an array and a slice keep the memory as the batch does
                kept.append((ids, batch["image"].view(8, 2, -1)[:, 1]))
                kept.append((ids, torch.from_numpy(batch["image"].numpy()[:, 5:6])))
                kept.append((ids[2:3], batch["image"][2:3].detach()))
    assert len(kept) == 4 * 2 * 3
    for ids, part in kept:
        assert torch.equal(part, ids[:, None].expand_as(part))


def test_memory_is_used_again_when_a_batch_is_dropped() -> None:
    buffers = Buffers()
    first = buffers.lend(LARGE)
    address = first.data_ptr()
    second = buffers.lend(LARGE)
    assert second.data_ptr() != address
    view = first.view(torch.int64)[5:]
    del first
    gc.collect()
    third = buffers.lend(LARGE)
    assert third.data_ptr() != address
    del view
    assert buffers.lend(LARGE).data_ptr() == address


def test_memory_of_sizes_that_do_not_come_again_is_let_go() -> None:
    """Batches of one picture each, of any size, must not fill the memory up."""
    buffers = Buffers()
    for size in range(200):
        buffers.lend(LARGE + size)
    gc.collect()
    held = sum(len(array) for free in buffers._free.values() for array in free)
    assert held < 100 * (LARGE + 200)


@pytest.mark.parametrize(("together", "found"), [(1, 1), (1, 99), (2, 1), (3, 42), (16, 99)])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 3])
def test_batches_looked_up_together_are_the_same(folder, together, found, prefetch, monkeypatch):
    monkeypatch.setattr("headrace.data.loader._MAX_TOGETHER", together)
    monkeypatch.setattr("headrace.data.loader._FOUND_SAMPLES", found)
    order = TrainOrder(num_samples=NUM_SAMPLES, seed=0, global_batch_size=7, drop_last=False)
    loader = BatchLoader(ShardedDataset(folder, "train"), order, prefetch=prefetch)
    loader.load_state_dict({"epoch": 1, "global_index": 7})
    for number, batch in enumerate(loader, 1):
        assert batch["sample_id"].tolist() == order.batch(1, number).tolist()
        assert loader.state_dict() == {"epoch": 1, "global_index": (number + 1) * 7}
        assert torch.equal(batch["label"], batch["sample_id"] % 3)
    assert number == 5
