"""Which sample goes to which split, and in which order: pure functions of paths and a seed.

The order is that of hashes of the paths, not of a random number generator, so that it is the same
with every release of NumPy, and a sample that is added moves few others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.packing.sample_table import give_back_small_blocks

Indices = NDArray[np.int64]


def split_counts(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Samples of each split by the largest remainder method, out of shares of any sum."""
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
    took most, as long as the split (`split_counts` of the whole) has room; where there is none,
    another class moves its sample to a third split. So shares are rounded up or down, where that
    can be.
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
    fractional = [cell for cell in cells if ideals[cell[0]][cell[1]] % 1]
    given: list[set[str]] = [set() for _ in counts]
    open_names: list[list[str]] = [[] for _ in counts]
    for number, name in fractional:
        open_names[number].append(name)
        if left[number] and room[name]:
            given[number].add(name)
            left[number] -= 1
            room[name] -= 1
    for number in range(len(counts)):
        while left[number] and _moved(given, open_names, room, number, set()):
            left[number] -= 1
    for number, names in enumerate(given):
        for name in names:
            counts[number][name] += 1
    while any(left):
        _give(counts, left, room, cells)
    return counts


def _moved(
    given: Sequence[set[str]],
    open_names: Sequence[Sequence[str]],
    room: dict[str, int],
    number: int,
    visited: set[str],
) -> bool:
    """Round a class up in one more split; where it has no room, another class leaves it."""
    for name in open_names[number]:
        if name in visited or name in given[number]:
            continue
        visited.add(name)
        if room[name]:
            room[name] -= 1
        else:
            holders = (other for other, names in enumerate(given) if name in names)
            leaving = (h for h in holders if _moved(given, open_names, room, h, visited))
            holder = next(leaving, None)
            if holder is None:
                continue
            given[holder].remove(name)
        given[number].add(name)
        return True
    return False


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


def remaining_shares(
    shares: Mapping[str, float], counts: Mapping[str, int], num_new: int
) -> dict[str, float]:
    """Return the shares of new samples that bring all samples as near as can be to `shares`.

    `counts` are the samples of each split that stay there. The result has any sum.
    """
    if not num_new:
        return dict(shares)
    ideals = _ideals(num_new + sum(counts.values()), shares)
    return {name: max(float(ideals[name] - counts[name]), 0.0) for name in shares}


def assign_splits(
    paths: Iterable[str],
    labels: ArrayLike,
    shares: Mapping[str, float],
    seed: int,
    order: NDArray[np.uint64],
) -> dict[str, Indices]:
    """Indices of the samples of each split, in a seeded random order.

    Any range of a split is a random sample of it. Every index is in one split.

    Args:
        paths: Distinct path of every sample.
        labels: Class index of every sample to keep class shares in every split; empty not to.
        shares: Share of each split, in the order of the result.
        seed: Another seed gives other splits.
        order: `ranks` of the paths.
    """
    classes = np.asarray(labels, dtype=np.int64)
    used = [name for name, share in shares.items() if share > 0]
    if len(used) == 1:  # nothing to decide
        in_class = [np.arange(len(order))]
    else:
        by_hash = np.argsort(_keys(paths, seed, "split"), kind="stable")
        in_class = _by_class(by_hash, classes, seed)
    counts = stratified_counts([len(part) for part in in_class], shares)
    parts: dict[str, list[Indices]] = {name: [np.empty(0, dtype=np.int64)] for name in shares}
    for part, row in zip(in_class, counts, strict=True):
        start = 0
        for name, count in row.items():
            parts[name].append(part[start : start + count])
            start += count
    return {name: in_order(np.concatenate(found), order) for name, found in parts.items()}


def assign_groups(
    groups: Sequence[str],
    labels: ArrayLike,
    shares: Mapping[str, float],
    seed: int,
    order: NDArray[np.uint64],
) -> dict[str, Indices]:
    """As `assign_splits`, but all samples of a group are in one split.

    The largest group comes first; each goes to the split that is furthest from its share, counted
    in classes when labels are given. The seed decides between groups of one size, too.
    """
    names, group_of = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    table = _counts(group_of, np.asarray(labels, dtype=np.int64))
    ties = _keys([str(name) for name in names], seed, "group")
    used = [name for name, share in shares.items() if share > 0]
    weights = np.array([shares[name] for name in used])
    wanted = weights[:, None] / weights.sum() * table.sum(axis=0)[None, :]
    split_of = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((ties, -table.sum(axis=1))):
        row = table[group]
        # how much nearer to what is wanted, relative to the split's size
        gain = (row * (2 * wanted - row)).sum(axis=1) / weights
        split_of[group] = np.argmax(gain)
        wanted[split_of[group]] -= row
    of_sample = split_of[group_of]
    none = np.empty(0, dtype=np.int64)
    found = {name: np.flatnonzero(of_sample == number) for number, name in enumerate(used)}
    return {name: in_order(found.get(name, none), order) for name in shares}


def ranks(paths: Iterable[str], seed: int) -> NDArray[np.uint64]:
    """Random number of every path, `(num_samples,)`: samples lie in shards in their order."""
    return _keys(paths, seed, "order")


def in_order(indices: Indices, order: NDArray[np.uint64]) -> Indices:
    """The indices sorted by their ranks."""
    ordered: Indices = indices[np.argsort(order[indices], kind="stable")]
    return ordered


def _keys(texts: Iterable[str], seed: int, purpose: str) -> NDArray[np.uint64]:
    """Hash of every text: its order is a random order of the texts, another for each purpose."""
    digest, prefix = xxhash.xxh3_128_digest, f"{purpose}\0{seed}\0".encode()
    found = bytearray()
    for text in texts:
        found += digest(prefix + text.encode())[:8]
    give_back_small_blocks()
    return np.frombuffer(found, dtype=">u8").astype(np.uint64)


def _by_class(by_hash: Indices, classes: NDArray[np.int64], seed: int) -> list[Indices]:
    """Indices of each class; ties go by a hash, lest the first classes fill the first splits."""
    if not len(classes):
        return [by_hash]
    stable = by_hash[np.argsort(classes[by_hash], kind="stable")]
    labels, starts = np.unique(classes[stable], return_index=True)
    parts = np.split(stable, starts[1:])
    order = np.argsort(_keys([str(label) for label in labels], seed, "class"), kind="stable")
    return [parts[number] for number in order]


def _counts(group_of: Indices, classes: NDArray[np.int64]) -> NDArray[Any]:
    """Samples by group and class, `(num_groups, num_classes) float64`."""
    num_groups = int(group_of.max()) + 1 if len(group_of) else 0
    num_classes = int(classes.max()) + 1 if len(classes) else 1
    cells = group_of * num_classes + (classes if len(classes) else 0)
    flat = np.bincount(cells, minlength=num_groups * num_classes)
    return flat.reshape(num_groups, num_classes).astype(np.float64)


def _ideals(total: int, shares: Mapping[str, float]) -> dict[str, Fraction]:
    # repr gives the decimal number that was written, so that 0.29 of 100 is 29
    exact = {name: Fraction(repr(float(share))) for name, share in shares.items()}
    whole = sum(exact.values())
    return {name: total * share / whole for name, share in exact.items()}
