"""The global order: equal steps, each sample once, the same for any world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.order import EachOnceOrder, TrainOrder
from headrace.data.sampling import epoch_order
from headrace.errors import UserError
from headrace.recipe.gang_size import check_global_batch


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
        "shuffle": draw(st.booleans()),
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


@given(
    st.sampled_from([(1, 12), (2, 12), (3, 12), (4, 12), (6, 12)]),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.integers(0, 8),
    st.integers(0, 1000),
)
def test_a_position_means_the_same_after_the_world_size_changed(before, after, stop, seed):
    """Pains 30: break anywhere, go on with any number of ranks."""
    world_size, batch = before
    num_samples = batch * 9 + 5
    common = {"num_samples": num_samples, "seed": seed, "global_batch_size": batch}
    first = [TrainOrder(rank=r, world_size=world_size, **common) for r in range(world_size)]
    second = [TrainOrder(rank=r, world_size=after, **common) for r in range(after)]
    trained = [o.batch(3, number) for number in range(stop) for o in first]
    trained += [o.batch(3, number) for number in range(stop, second[0].num_batches) for o in second]
    whole = epoch_order(num_samples, seed, 3)[: 9 * batch]
    assert np.concatenate(trained).tolist() == whole.tolist()


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
