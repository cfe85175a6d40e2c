"""Finding the shard of a sample gives what a search among the ends gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.shards import mapped
from headrace.shards.mapped import ShardSearch

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
