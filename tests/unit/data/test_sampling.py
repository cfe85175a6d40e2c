"""Orders of all kinds: pure, independent of the world size, each sample once or by weight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.order import TrainOrder
from headrace.data.sampling import (
    Blocks,
    BlocksFirst,
    Epochs,
    Weighted,
    Whole,
    check_weights,
    class_weights,
)
from headrace.errors import DataError, UserError
from headrace.recipe.recipe import DataSpec

WORLD_SIZES = (1, 2, 3, 4, 6)
BATCH = 12


@st.composite
def epochs_of_any_kind(draw) -> Epochs:
    sizes = tuple(draw(st.lists(st.integers(1, 20), min_size=3, max_size=8)))
    seed, total = draw(st.integers(0, 2**32 - 1)), sum(sizes)
    kind = draw(st.sampled_from(["whole", "in turn", "blocks", "first", "weighted"]))
    blocks = Blocks(shard_samples=sizes, seed=seed, window=draw(st.integers(1, 4)))
    if kind == "blocks":
        return blocks
    if kind == "first":
        return BlocksFirst(first=blocks, later=Whole(num_samples=total, seed=seed))
    if kind == "weighted":
        weights = np.random.default_rng(seed).random(total)
        return Weighted(weights=weights, seed=seed, num_samples=draw(st.integers(BATCH, 90)))
    return Whole(num_samples=total, seed=seed, shuffle=kind == "whole")


def train_orders(epochs: Epochs, world_size: int, drop_last: bool) -> list[TrainOrder]:
    return [
        TrainOrder(
            num_samples=epochs.num_samples,
            seed=0,
            global_batch_size=BATCH,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            epochs=epochs,
        )
        for rank in range(world_size)
    ]


@settings(max_examples=60, deadline=None)
@given(
    epochs_of_any_kind(),
    st.sampled_from(WORLD_SIZES),
    st.sampled_from(WORLD_SIZES),
    st.integers(0, 3),
    st.integers(0, 6),
    st.booleans(),
)
def test_any_order_is_the_same_for_any_world_size_and_after_a_break(
    epochs, before, after, epoch, stop, drop_last
):
    """Pains 29, 30: equal steps; break anywhere, go on with other ranks, nothing twice."""
    whole = epochs.order(epoch)
    if len(whole) < BATCH:
        return
    assert np.array_equal(whole, epochs.order(epoch))
    seen: list[int] = []
    first = train_orders(epochs, before, drop_last)
    second = train_orders(epochs, after, drop_last)
    assert len({order.num_batches for order in first}) == 1
    for number in range(second[0].num_batches):
        orders = first if number < min(stop, first[0].num_batches) else second
        shares = [order.batch(epoch, number) for order in orders]
        assert len({len(share) for share in shares}) == 1
        seen += np.concatenate(shares).tolist()
    full = len(whole) // BATCH * BATCH
    assert seen[:full] == whole[:full].tolist()
    assert seen[full:] == whole[full:][: len(seen) - full].tolist()
    assert len(whole) - len(seen) < (BATCH if drop_last else max(before, after))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
    st.integers(0, 9),
)
def test_blocks_take_each_sample_once_and_one_window_after_the_other(sizes, window, seed, epoch):
    blocks = Blocks(shard_samples=tuple(sizes), seed=seed, window=window)
    order, shards = blocks.order(epoch), blocks.shard_order(epoch)
    assert sorted(order.tolist()) == list(range(sum(sizes)))
    assert sorted(shards.tolist()) == list(range(len(sizes)))
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    start = 0
    for first in range(0, len(sizes), window):
        members = set(shards[first : first + window].tolist())
        num_samples = sum(sizes[shard] for shard in members)
        taken = shard_of[order[start : start + num_samples]]
        assert set(taken.tolist()) <= members
        start += num_samples


def test_the_block_order_is_the_promised_one():
    """Another order would break the resume of trainings from before an upgrade."""
    blocks = Blocks(shard_samples=(3, 3, 3), seed=7, window=2)
    assert blocks.shard_order(0).tolist() == [1, 0, 2]
    assert blocks.order(0).tolist() == [0, 2, 3, 4, 5, 1, 7, 8, 6]
    draws = Weighted(weights=np.array([1.0, 0.0, 3.0]), seed=7, num_samples=8)
    assert draws.order(1).tolist() == [0, 2, 0, 0, 2, 0, 2, 2]


def test_a_window_mixes_its_shards_and_epochs_differ():
    blocks = Blocks(shard_samples=(50,) * 8, seed=1, window=4)
    orders = [blocks.order(epoch) for epoch in range(3)]
    assert all(len(set((order[:30] // 50).tolist())) == 4 for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_balanced_sampling_draws_classes_alike():
    labels = np.array([0] * 900 + [1] * 90 + [5] * 10)
    epochs = Weighted(weights=class_weights(labels), seed=3, num_samples=6000)
    _, counts = np.unique(labels[epochs.order(0)], return_counts=True)
    assert len(counts) == 3
    assert np.abs(counts - 2000).max() < 200  # 5 standard deviations are 183
    assert not np.array_equal(epochs.order(0), epochs.order(1))


def test_draws_follow_the_weights_and_never_take_weight_zero():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 0.0, 0.0])
    order = Weighted(weights=weights, seed=1, num_samples=4000).order(2)
    counts = np.bincount(order, minlength=6)
    assert counts[[0, 3, 4, 5]].tolist() == [0, 0, 0, 0]
    assert abs(counts[1] - 1000) < 140


def test_weights_that_cannot_be_drawn_by_are_named():
    with pytest.raises(DataError, match="Sample 1 has -2"):
        check_weights(np.array([1, -2]), "importance")
    with pytest.raises(DataError, match="All weights in 'importance' are 0"):
        check_weights(np.zeros(3), "importance")
    with pytest.raises(UserError, match=r"float32 \(2,\) per sample"):
        check_weights(np.zeros((3, 2), dtype=np.float32), "importance")


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"sampling": "balanced", "shuffle_window": 2}, "without shuffle_window"),
        ({"sampling": "balanced", "shuffle": False}, "shuffle: true"),
        ({"samples_per_epoch": 5}, "samples_per_epoch"),
        ({"shuffle": False, "shuffle_window": 2}, "shuffle_window goes"),
        ({"shuffle_window": 3, "read_ahead": 2}, "read_ahead must be"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(keys, match):
    with pytest.raises(ValueError, match=match):
        DataSpec(**keys)
