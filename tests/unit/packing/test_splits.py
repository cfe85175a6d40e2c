"""Splits add up exactly, keep class shares, and depend on nothing but paths and seed."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.packing.splits import (
    assign_groups,
    assign_splits,
    ranks,
    remaining_shares,
    split_counts,
    stratified_counts,
)

SHARES = (
    st.lists(st.integers(0, 100), min_size=1, max_size=4)
    .filter(any)
    .map(lambda weights: {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)})
)


def assigned(paths, labels, shares, seed):
    return assign_splits(paths, labels, shares, seed, ranks(paths, seed))


def grouped(paths, groups, labels, shares, seed):
    return assign_groups(groups, labels, shares, seed, ranks(paths, seed))


@pytest.mark.parametrize(
    ("total", "shares", "counts"),
    [
        (1797, {"train": 0.7, "val": 0.1, "test": 0.2}, {"train": 1258, "val": 180, "test": 359}),
        (100, {"a": 0.29, "b": 0.71}, {"a": 29, "b": 71}),
        (10, {"a": 0.333333, "b": 0.333333, "c": 0.333334}, {"a": 3, "b": 3, "c": 4}),
        (5, {"train": 0.8, "val": 0.1, "test": 0.1}, {"train": 4, "val": 1, "test": 0}),
        (3, {"all": 1.0, "none": 0.0}, {"all": 3, "none": 0}),
        (0, {"all": 1.0}, {"all": 0}),
    ],
)
def test_counts(total: int, shares: dict[str, float], counts: dict[str, int]) -> None:
    assert split_counts(total, shares) == counts


@given(st.integers(0, 10_000), SHARES)
def test_counts_are_the_largest_remainders(total: int, shares: dict[str, float]) -> None:
    counts = split_counts(total, shares)
    assert sum(counts.values()) == total
    for name, share in shares.items():
        assert abs(counts[name] - total * share) < 1


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), SHARES)
@example([9] * 4, {"a": 2 / 29, "b": 9 / 29, "c": 9 / 29, "d": 9 / 29})
def test_classes_and_splits_both_add_up(sizes: list[int], shares: dict[str, float]) -> None:
    rows = stratified_counts(sizes, shares)
    whole = split_counts(sum(sizes), shares)
    assert [sum(row.values()) for row in rows] == sizes
    assert {name: sum(row[name] for row in rows) for name in shares} == whole
    for size, row in zip(sizes, rows, strict=True):
        for name, share in shares.items():
            assert abs(row[name] - size * share) < 2


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    SHARES,
    st.integers(0, 2**32),
    st.booleans(),
)
def test_every_sample_is_in_one_split(
    labels: list[int], shares: dict[str, float], seed: int, stratify: bool
) -> None:
    paths = [f"{number}.png" for number in range(len(labels))]
    splits = assigned(paths, labels if stratify else [], shares, seed)
    assert sorted(index for part in splits.values() for index in part) == list(range(len(paths)))
    assert {name: len(part) for name, part in splits.items()} == split_counts(len(paths), shares)


def test_splits_are_pinned() -> None:
    """The same in every release: a changed hash or order would silently move test samples."""
    paths = [f"{number}.png" for number in range(8)]
    splits = assigned(paths, [0, 1] * 4, {"train": 0.5, "test": 0.5}, 7)
    assert {name: part.tolist() for name, part in splits.items()} == PINNED


PINNED = {"train": [2, 7, 0, 5], "test": [4, 1, 6, 3]}


def test_seed_and_order() -> None:
    paths = [f"{number}.png" for number in range(1000)]
    shares = {"train": 0.9, "test": 0.1}
    one, two = (assigned(paths, [], shares, seed) for seed in (1, 2))
    again = assigned(paths, [], shares, 1)
    assert all(one[name].tolist() == again[name].tolist() for name in shares)
    assert set(one["test"]) != set(two["test"])
    half = [index for index in one["train"][:450] if index < 500]
    assert 180 < len(half) < 270  # any range is a random sample


def test_order_of_the_listing_does_not_matter() -> None:
    paths = [f"{number}.png" for number in range(50)]
    labels = [number % 3 for number in range(50)]
    shares = {"train": 0.7, "test": 0.3}
    straight = assigned(paths, labels, shares, 3)
    reverse = assigned(paths[::-1], labels[::-1], shares, 3)
    for name in shares:
        assert [paths[i] for i in straight[name]] == [paths[::-1][i] for i in reverse[name]]


def test_an_added_sample_moves_few_others() -> None:
    paths = [f"{number}.png" for number in range(1000)]
    shares = {"train": 0.8, "test": 0.2}
    before = set(assigned(paths, [], shares, 0)["test"])
    after = set(assigned([*paths, "new.png"], [], shares, 0)["test"])
    assert len(before ^ after) <= 3


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=80),
    SHARES,
    st.integers(0, 2**32),
)
def test_no_group_is_in_two_splits(
    samples: list[tuple[int, int]], shares: dict[str, float], seed: int
) -> None:
    paths = [f"{number}.png" for number in range(len(samples))]
    groups = [f"patient-{group}" for group, _ in samples]
    splits = grouped(paths, groups, [label for _, label in samples], shares, seed)
    assert sorted(index for part in splits.values() for index in part) == list(range(len(paths)))
    found = [{groups[index] for index in part} for part in splits.values()]
    assert sum(map(len, found)) == len(set(groups))
    assert all(not len(splits[name]) for name, share in shares.items() if not share)


def test_groups_keep_shares_of_samples_and_classes() -> None:
    """Six hundred groups of one to nine samples, each of one class."""
    groups = [f"g{group}" for group in range(600) for _ in range(1 + group % 9)]
    labels = [int(group[1:]) % 4 for group in groups]
    paths = [f"{number}.png" for number in range(len(groups))]
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    splits = grouped(paths, groups, labels, shares, 3)
    for name, share in shares.items():
        assert abs(len(splits[name]) / len(paths) - share) < 0.01
        of_class = np.bincount(np.array(labels)[splits[name]], minlength=4)
        whole = np.bincount(labels) * share
        assert np.all(np.abs(of_class - whole) < 0.05 * whole + 9)
    other = grouped(paths, groups, labels, shares, 4)
    assert set(other["test"].tolist()) != set(splits["test"].tolist())
    reverse = grouped(paths[::-1], groups[::-1], labels[::-1], shares, 3)
    for name in shares:
        straight = [paths[index] for index in splits[name]]
        assert [paths[::-1][index] for index in reverse[name]] == straight


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=5), st.integers(0, 9))
def test_samples_that_come_later_bring_all_near_the_shares(parts: list[int], seed: int) -> None:
    shares = {"train": 0.7, "val": 0.2, "test": 0.1}
    counts = dict.fromkeys(shares, 0)
    total = 0
    for part in parts:
        wanted = remaining_shares(shares, counts, part)
        paths = [f"{number}.png" for number in range(total, total + part)]
        found = assigned(paths, (), wanted, seed)
        total += part
        before, counts = counts, {name: counts[name] + len(found[name]) for name in shares}
        over = sum(max(before[name] - total * share, 0) for name, share in shares.items())
        for name, share in shares.items():
            assert abs(counts[name] - max(total * share, before[name])) < 1 + over
    assert sum(counts.values()) == total
