"""Orders of all kinds: pure, independent of the world size, each sample once or by weight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.order import EachOnceOrder, TrainOrder
from headrace.data.sampling import (
    Epochs,
    blocks,
    blocks_first,
    check_weights,
    epoch_order,
    shard_order,
    weighted,
    whole,
)
from headrace.errors import DataError, UserError
from headrace.recipe.gang_size import check_global_batch
from headrace.recipe.recipe import DataSpec

WORLD_SIZES = (1, 2, 3, 4, 6)
BATCH = 12


@st.composite
def epochs_of_any_kind(draw) -> Epochs:
    sizes = tuple(draw(st.lists(st.integers(1, 20), min_size=3, max_size=8)))
    seed, total = draw(st.integers(0, 2**32 - 1)), sum(sizes)
    kind = draw(st.sampled_from(["whole", "in turn", "blocks", "first", "weighted"]))
    window = draw(st.integers(1, 4))
    if kind == "blocks":
        return blocks(sizes, seed, window)
    if kind == "first":
        return blocks_first(sizes, seed, window)
    if kind == "weighted":
        weights = np.random.default_rng(seed).random(total)
        return weighted(weights, seed, draw(st.integers(BATCH, 90)), "weights")
    return whole(total, seed, shuffle=kind == "whole")


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
    order = epochs.order(epoch)
    if len(order) < BATCH:
        return
    assert np.array_equal(order, epochs.order(epoch))
    seen: list[int] = []
    first = train_orders(epochs, before, drop_last)
    second = train_orders(epochs, after, drop_last)
    assert len({order.num_batches for order in first}) == 1
    for number in range(second[0].num_batches):
        orders = first if number < min(stop, first[0].num_batches) else second
        shares = [order.batch(epoch, number) for order in orders]
        assert len({len(share) for share in shares}) == 1
        seen += np.concatenate(shares).tolist()
    full = len(order) // BATCH * BATCH
    assert seen[:full] == order[:full].tolist()
    assert seen[full:] == order[full:][: len(seen) - full].tolist()
    assert len(order) - len(seen) < (BATCH if drop_last else max(before, after))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
    st.integers(0, 9),
)
def test_blocks_take_each_sample_once_and_one_window_after_the_other(sizes, window, seed, epoch):
    order = blocks(sizes, seed, window).order(epoch)
    shards = shard_order(len(sizes), seed, epoch)
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
    assert shard_order(3, 7, 0).tolist() == [1, 0, 2]
    assert blocks((3, 3, 3), 7, 2).order(0).tolist() == [0, 2, 3, 4, 5, 1, 7, 8, 6]
    draws = weighted(np.array([1.0, 0.0, 3.0]), 7, 8, "weights")
    assert draws.order(1).tolist() == [0, 2, 0, 0, 2, 0, 2, 2]


def test_a_window_mixes_its_shards_and_epochs_differ():
    orders = [blocks((50,) * 8, 1, 4).order(epoch) for epoch in range(3)]
    assert all(len(set((order[:30] // 50).tolist())) == 4 for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_draws_follow_the_weights_and_never_take_weight_zero():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 0.0, 0.0])
    order = weighted(weights, 1, 4000, "weights").order(2)
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


@given(st.integers(0, 500), st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_an_epoch_is_a_permutation_and_a_pure_function(num_samples, seed, epoch):
    order = epoch_order(num_samples, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(num_samples))
    assert np.array_equal(order, epoch_order(num_samples, seed, epoch))


def test_the_order_is_the_promised_one():
    """Another order would break the resume of trainings from before an upgrade."""
    assert epoch_order(8, 7, 0).tolist() == [7, 1, 3, 2, 6, 5, 0, 4]
    assert epoch_order(8, 7, 1).tolist() == [1, 7, 4, 0, 3, 2, 6, 5]
    assert epoch_order(4, 7, 1, shuffle=False).tolist() == [0, 1, 2, 3]


def test_epochs_and_seeds_differ():
    orders = [epoch_order(50, seed, epoch).tolist() for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


@st.composite
def trainings(draw):
    world_size = draw(st.integers(1, 8))
    accumulate = draw(st.integers(1, 3))
    batch = world_size * accumulate * draw(st.integers(1, 6))
    return {
        "num_samples": draw(st.integers(batch, batch * 7)),
        "seed": draw(st.integers(0, 1000)),
        "global_batch_size": batch,
        "accumulate": accumulate,
        "world_size": world_size,
        "drop_last": draw(st.booleans()),
    }


@given(trainings(), st.integers(0, 5))
def test_ranks_share_each_batch_equally_and_no_sample_comes_twice(training, epoch):
    """Pains 29: equal steps by construction."""
    orders = [TrainOrder(rank=rank, **training) for rank in range(training["world_size"])]
    assert len({order.num_batches for order in orders}) == 1
    seen: list[int] = []
    for number in range(orders[0].num_batches):
        shares = [order.batch(epoch, number) for order in orders]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) > 0
        seen += np.concatenate(shares).tolist()
    assert len(set(seen)) == len(seen)
    left_out = training["num_samples"] - len(seen)
    assert left_out == orders[0].num_left_out
    limit = training["global_batch_size"] if training["drop_last"] else training["world_size"]
    assert left_out < limit


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 8))
def test_validation_sees_each_sample_once_and_no_batch_is_empty(num_samples, batch, world_size):
    if num_samples < world_size:
        with pytest.raises(UserError, match="fewer than"):
            EachOnceOrder(num_samples=num_samples, global_batch_size=batch, world_size=world_size)
        return
    orders = [
        EachOnceOrder(
            num_samples=num_samples, global_batch_size=batch, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    assert len({order.num_batches for order in orders}) == 1
    shares = [o.batch(0, number) for o in orders for number in range(o.num_batches)]
    assert np.concatenate(shares).tolist() == list(range(num_samples))
    sizes = {len(share) for share in shares}
    assert min(sizes) > 0
    assert max(sizes) <= max(batch // world_size, 1) + 1


@given(trainings(), st.integers(0, 5))
def test_an_optimizer_step_takes_the_same_samples_in_one_batch_and_in_several(training, epoch):
    """`global_batch_size` is what an optimizer step takes, whatever it is cut into."""
    accumulate = training["accumulate"]
    whole, cut = (
        [TrainOrder(rank=rank, **{**training, **how}) for rank in range(training["world_size"])]
        for how in ({"accumulate": 1}, {})
    )
    full = training["num_samples"] // training["global_batch_size"]
    assert cut[0].num_batches >= full * accumulate
    assert cut[0].num_batches == full * accumulate or not training["drop_last"]
    for step in range(full):
        numbers = range(step * accumulate, (step + 1) * accumulate)
        parts = [order.batch(epoch, number) for number in numbers for order in cut]
        assert {len(part) for part in parts} == {cut[0].batch_span // len(cut)}
        together = np.concatenate([order.batch(epoch, step) for order in whole])
        assert np.concatenate(parts).tolist() == together.tolist()


@pytest.mark.parametrize(
    ("batch", "ranks", "accumulate", "valid"),
    [
        (10, 4, 1, "8 or 12"),
        (3, 4, 1, "4"),
        (65, 8, 1, "64 or 72"),
        (64, 8, 3, r"48 or 72"),
    ],
)
def test_a_batch_that_ranks_cannot_share_names_the_nearest(batch, ranks, accumulate, valid):
    with pytest.raises(UserError, match=f"Nearest valid: {valid}") as caught:
        check_global_batch(batch, ranks, accumulate)
    assert ("trainer.accumulate_grad_batches" in caught.value.what) == (accumulate > 1)


def test_too_few_samples_for_one_batch():
    """Pains 29."""
    with pytest.raises(UserError, match="40 samples, too few") as caught:
        TrainOrder(num_samples=40, seed=0, global_batch_size=64)
    assert "drop_last" in caught.value.hint
