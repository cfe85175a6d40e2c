"""Shards of sources that are read in sequence, and of equal size."""

from itertools import pairwise

import numpy as np
import pytest

from headrace.packing.division import cut, shards_of
from headrace.packing.splits import ranks
from headrace.recipe.dataset import PackSpec

PATHS = [f"rows.parquet#{number}" for number in range(100)]


def test_shards_of_a_sequence_hold_neighbours_in_random_order() -> None:
    order = ranks(PATHS, 5)
    split = np.argsort(order)[:80]
    pack = PackSpec(shard_samples=16)
    sizes = np.full(100, 10)
    shards = list(shards_of(split, sizes, order, pack))
    bounds = [(part.min(), part.max()) for part in shards]
    assert all(one[1] < other[0] for one, other in pairwise(bounds))
    assert all(not np.array_equal(part, np.sort(part)) for part in shards)
    assert sorted(np.concatenate(shards)) == sorted(split)
    scattered = list(shards_of(split, sizes, None, pack))
    assert np.array_equal(np.concatenate(scattered), split)


@pytest.mark.parametrize(
    ("sizes", "pack", "edges"),
    [
        ([40, 40, 40, 40], {"shard_bytes": 100}, [(0, 2), (2, 4)]),
        ([40, 500, 40], {"shard_bytes": 100}, [(0, 1), (1, 2), (2, 3)]),
        ([1] * 10, {"shard_samples": 4}, [(0, 4), (4, 8), (8, 10)]),
        (
            [1] * 10,
            {"shard_samples": 4, "shards_multiple_of": 4},
            [(0, 2), (2, 5), (5, 7), (7, 10)],
        ),
        ([1] * 3, {"shard_samples": 4, "shards_multiple_of": 4}, [(0, 3)]),
        ([], {}, []),
    ],
)
def test_edges(sizes: list[int], pack: dict[str, int], edges: list[tuple[int, int]]) -> None:
    assert list(cut(np.array(sizes, dtype=np.int64), PackSpec.model_validate(pack))) == edges
