"""Labels as numbers; splits; shards of sources that are read in sequence, and of equal size."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.packing.division import (
    SourceListing,
    cut,
    shards_of,
    split_samples,
    with_classes,
)
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import READ_BYTES
from headrace.packing.splits import ranks
from headrace.recipe.dataset import DatasetSpec, PackSpec


def table_of(paths: list[str], labels: Iterable[str], **roles: Any) -> SampleTable:
    sizes, versions = [1] * len(paths), [""] * len(paths)
    return SampleTable.of(path=paths, bytes=sizes, version=versions, label=list(labels), **roles)


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


def test_a_large_shard_of_a_sequence_is_mixed_part_by_part() -> None:
    """So that its source is read once, whatever the size of the shard."""
    order = ranks(PATHS, 5)
    (shard,) = shards_of(
        np.argsort(order), np.full(100, READ_BYTES // 20), order, PackSpec(shard_samples=100)
    )
    parts = np.split(shard, range(20, 100, 20))
    assert [(part.min(), part.max()) for part in parts] == [
        (start, start + 19) for start in range(0, 100, 20)
    ]
    assert all(not np.array_equal(part, np.sort(part)) for part in parts)


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


@settings(max_examples=20)
@given(st.permutations(["train", "val", "test", "a", "z"]), st.booleans(), st.booleans(), st.data())
def test_splits_do_not_depend_on_the_order_of_their_names_in_the_recipe(
    names: list[str], stratify: bool, has_groups: bool, data: st.DataObject
) -> None:
    """A recipe that is written anew with sorted keys is the same dataset."""
    labels = data.draw(st.lists(st.integers(0, 2), min_size=40, max_size=40))
    files = [f"{number}.png" for number in range(40)]
    groups = {"group": [str(number // 3) for number in range(40)]} if has_groups else {}
    listing = SourceListing(
        source="source",
        samples=with_classes(table_of(files, map(str, labels), **groups)),
        appends=True,
    )
    shares = {"train": 0.4, "val": 0.2, "test": 0.2, "a": 0.1, "z": 0.1}
    given, wanted = (
        DatasetSpec(name="one", source="source", splits=splits, stratify=stratify)
        for splits in ({name: shares[name] for name in names}, shares)
    )
    assert given.model_dump_json() == wanted.model_dump_json()
    order = ranks(files, 0)
    found = split_samples(given, listing, order)
    right = split_samples(wanted, listing, order)
    assert list(found) == list(right) == ["train", "val", "test", "a", "z"]
    assert all(np.array_equal(found[name], right[name]) for name in right)


@pytest.mark.parametrize(
    ("labels", "given", "classes", "indices"),
    [
        (["dog", "cat", "dog"], [], ("cat", "dog"), [1, 0, 1]),
        (["10", "9", "0"], [], ("0", "9", "10"), [2, 1, 0]),
        (["dog", "cat"], ["dog", "fish", "cat"], ("dog", "fish", "cat"), [0, 2]),
    ],
)
def test_classes_are_ordered_by_alphabet_or_number_or_as_the_source_does(
    labels: list[str], given: list[str], classes: tuple[str, ...], indices: list[int]
) -> None:
    samples = with_classes(table_of(labels, labels), given)
    listing = SourceListing(source="source", samples=samples)
    assert (listing.classes, listing.class_indices.tolist()) == (classes, indices)
    assert [ref.label for ref in samples] == labels
