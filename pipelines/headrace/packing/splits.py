"""Which sample goes to which split, and in which order: pure functions of paths and a seed.

The order is that of hashes of the paths, not of a random number generator, so that it is the same
with every release of NumPy, and a sample that is added moves few others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import xxhash


def split_counts(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Samples of each split by the largest remainder method; they add up to `total`.

    Args:
        total: Samples in all.
        shares: Share of each split; scaled so that they add up to 1.
    """
    ideals = _ideals(total, shares)
    counts = {name: int(ideal) for name, ideal in ideals.items()}
    left = total - sum(counts.values())
    by_remainder = sorted(shares, key=lambda name: counts[name] - ideals[name])
    for name in by_remainder[:left]:
        counts[name] += 1
    return counts


def stratified_counts(
    class_sizes: Sequence[int], shares: Mapping[str, float]
) -> list[dict[str, int]]:
    """Samples of each split from each class, so that classes and splits both add up exactly.

    Every class gives a split its share rounded down, and what is left goes where the rounding
    took most, as long as the split (`split_counts` of the whole) has room.

    Args:
        class_sizes: Samples of each class.
        shares: Share of each split.

    Returns:
        Counts by split, one mapping a class.
    """
    ideals = [_ideals(size, shares) for size in class_sizes]
    counts = [{name: int(ideal) for name, ideal in row.items()} for row in ideals]
    room = split_counts(sum(class_sizes), shares)
    left = list(class_sizes)
    for number, row in enumerate(counts):
        left[number] -= sum(row.values())
        for name in row:
            room[name] -= row[name]
    cells = [(number, name) for number in range(len(counts)) for name in shares]
    cells.sort(key=lambda cell: counts[cell[0]][cell[1]] - ideals[cell[0]][cell[1]])
    _give(counts, left, room, [cell for cell in cells if ideals[cell[0]][cell[1]] % 1])
    while any(left):
        _give(counts, left, room, cells)
    return counts


def _give(
    counts: list[dict[str, int]],
    left: list[int],
    room: dict[str, int],
    cells: Sequence[tuple[int, str]],
) -> None:
    for number, name in cells:
        if left[number] and room[name]:
            counts[number][name] += 1
            left[number] -= 1
            room[name] -= 1


def assign_splits(
    paths: Sequence[str],
    labels: Sequence[int],
    shares: Mapping[str, float],
    seed: int,
) -> dict[str, tuple[int, ...]]:
    """Indices of the samples of each split, in a seeded random order.

    Any range of a split is a random sample of it.

    Args:
        paths: Distinct path of every sample.
        labels: Class index of every sample to keep class shares in every split; empty not to.
        shares: Share of each split.
        seed: Another seed gives other splits and another order.

    Returns:
        Every index of `paths` exactly once, by split in the order of `shares`.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(range(len(paths)), key=lambda i: _key(paths[i], seed, "split")):
        groups.setdefault(labels[index] if labels else 0, []).append(index)
    # ties between classes go by a hash, lest the first classes always fill the first splits
    classes = sorted(groups, key=lambda label: _key(str(label), seed, "class"))
    counts = stratified_counts([len(groups[label]) for label in classes], shares)
    splits: dict[str, list[int]] = {name: [] for name in shares}
    for label, row in zip(classes, counts, strict=True):
        start = 0
        for name, count in row.items():
            splits[name] += groups[label][start : start + count]
            start += count
    return {
        name: tuple(sorted(indices, key=lambda i: _key(paths[i], seed, "order")))
        for name, indices in splits.items()
    }


def _ideals(total: int, shares: Mapping[str, float]) -> dict[str, Fraction]:
    # repr gives the decimal number that was written, so that 0.29 of 100 is 29
    exact = {name: Fraction(repr(float(share))) for name, share in shares.items()}
    whole = sum(exact.values())
    return {name: total * share / whole for name, share in exact.items()}


def _key(text: str, seed: int, purpose: str) -> tuple[int, str]:
    return xxhash.xxh3_128_intdigest(f"{purpose}\0{seed}\0{text}".encode()), text
