"""Which samples make which split, fold and shard: pure functions of a listing and the recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecipeError, UnclearNamesError
from headrace.files.manifest import Quarantined
from headrace.packing.listed import Coded, Listed, numbers, taken
from headrace.packing.samples import READ_BYTES
from headrace.packing.sources.folder_layout import split_named
from headrace.packing.splits import Indices, assign_groups, assign_splits, in_order
from headrace.recipe.dataset import TRAIN, VALIDATION, DatasetSpec, PackSpec, in_split_order


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classes, and the class of every sample."""

    classes: tuple[str, ...]
    """Class names: by number when all are whole numbers, else by alphabet; empty for none."""
    indices: Sequence[int]
    """Class index of every file, in the files' order; empty for none."""


@dataclass(frozen=True, kw_only=True)
class SourceListing:
    """What lies in the source."""

    source: str
    samples: Listed
    """Its samples, sorted by path."""
    labels: Labels
    sequential: bool = False
    """Whether a shard should hold neighbours."""
    quarantined: tuple[Quarantined, ...] = ()
    """Samples that were left out."""
    code: str = ""
    """Hash of the user's code that makes the values; empty where there is none."""
    notes: tuple[str, ...] = ()
    """How the samples were found, for people."""


def labels_of(names: Sequence[str], classes: Sequence[str] = ()) -> Labels:
    """Labels out of the class name of every sample; `classes` gives the source's own order."""
    coded = Coded.of(names)
    as_numbers = all(name.isdecimal() and name.isascii() for name in coded.values)
    key = (lambda name: (int(name), name)) if as_numbers else None
    ordered = tuple(classes) or tuple(sorted(set(coded.values), key=key))
    index_of = {name: index for index, name in enumerate(ordered)}
    found = np.array([index_of[name] for name in coded.values], dtype=np.int64)[coded.codes]
    return Labels(classes=ordered, indices=numbers(found))


def check_names(dataset: DatasetSpec, samples: Listed, labels: Labels) -> list[str]:
    """Return notes on names of classes and splits that differ in case, or are not well known.

    Raises:
        UnclearNamesError: Names differ in spaces or Unicode form only, those of splits in case.
        RecipeError: The source has a split that folds make.
    """
    splits = tuple(filter(None, Coded.of(samples.splits).values))
    if dataset.folds is not None and VALIDATION in splits:
        raise RecipeError(
            "dataset.folds is set, but the source has a split 'val'",
            "Folds are the validation: leave dataset.folds out, or the samples of 'val'.",
        )
    for what, names, alike in (
        ("Classes", labels.classes, _normal),
        ("Splits", splits, lambda name: _normal(name).casefold()),
    ):
        for one, other in _pairs(names, alike):
            raise UnclearNamesError(
                f"{what} {one!r} and {other!r} differ only in case, spaces or Unicode form",
                "Give samples that belong together the same name.",
            )
    cases = _pairs(labels.classes, str.casefold)
    return [f"classes {one!r} and {other!r} differ only in case" for one, other in cases] + [
        f"split '{name}' is not the split '{known}'"
        for name in splits
        if (known := split_named(name)) not in ("", name)
    ]


def _normal(name: str) -> str:
    return " ".join(normalize("NFC", name).split())


def _pairs(names: Sequence[str], alike: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield names of which the part that counts is equal."""
    known: dict[str, str] = {}
    for name in names:
        if (first := known.setdefault(alike(name), name)) != name:
            yield first, name


def split_samples(
    dataset: DatasetSpec,
    listing: SourceListing,
    order: NDArray[np.uint64],
    *,
    may_be_empty: bool = False,
) -> dict[str, Indices]:
    """Indices of the samples of each split, in the order of the shards.

    `order` has the `ranks` of all samples.
    """
    samples = listing.samples
    if samples.splits:
        return _given_splits(samples, order)
    splits = _assign(dataset, samples, listing.labels.indices, dataset.splits, order)
    for name, share in dataset.splits.items():
        if share > 0 and not len(splits[name]) and not may_be_empty:
            raise RecipeError(
                f"Split '{name}' would be empty: {len(samples)} samples at a share of {share:g}",
                _more(samples, "Raise its share in dataset.splits"),
            )
    return splits


def _assign(
    dataset: DatasetSpec,
    samples: Listed,
    labels: Sequence[int],
    shares: dict[str, float],
    order: NDArray[np.uint64],
) -> dict[str, Indices]:
    paths, seed = samples.paths, dataset.split_seed
    classes = np.array(labels if dataset.stratify else (), dtype=np.int64)
    if not samples.groups:
        return assign_splits(paths, classes, shares, seed, order)
    pairs = zip(paths, samples.groups, strict=True)
    # a sample without a group is one of its own
    groups = [f"\0{path}" if group is None else group for path, group in pairs]
    return assign_groups(groups, classes, shares, seed, order)


def _given_splits(samples: Listed, order: NDArray[np.uint64]) -> dict[str, Indices]:
    splits = Coded.of(samples.splits)
    code_of = {name: code for code, name in enumerate(splits.values) if name is not None}
    return {
        name: in_order(np.flatnonzero(splits.codes == code_of[name]), order)
        for name in in_split_order(set(code_of))
    }


def folds_of(
    dataset: DatasetSpec,
    listing: SourceListing,
    split: str,
    indices: Indices,
    order: NDArray[np.uint64],
) -> Iterator[tuple[int | None, Indices]]:
    """The folds of a split with their numbers; the whole split, when it has none."""
    if dataset.folds is None or split != TRAIN:
        yield None, indices
        return
    shares = {str(fold): 1 / dataset.folds for fold in range(dataset.folds)}
    labels = listing.labels.indices
    samples = listing.samples.at(indices)
    labels = taken(labels, indices) if labels else ()
    for name, part in _assign(dataset, samples, labels, shares, order[indices]).items():
        if not len(part):
            raise RecipeError(
                f"Fold {name} of {dataset.folds} would be empty: split '{split}' has "
                f"{len(indices):,} samples",
                _more(listing.samples, "Lower dataset.folds"),
            )
        yield int(name), indices[part]


def _more(samples: Listed, otherwise: str) -> str:
    if samples.groups:
        return f"Samples of a group stay together. {otherwise}, or add samples of other groups."
    return f"{otherwise}, or add samples."


def shards_of(
    indices: Indices,
    sizes: NDArray[np.int64],
    order: NDArray[np.uint64] | None,
    pack: PackSpec,
) -> Iterator[Indices]:
    """Samples of each shard, out of samples in random order.

    `sizes` has the bytes of every sample, `order` their ranks where shards should hold neighbours.
    """
    if order is not None:
        indices = np.sort(indices)
    for start, stop in cut(sizes[indices], pack):
        part = indices[start:stop]
        if order is not None:  # neighbours that are read at once are mixed among themselves
            read_with = (np.cumsum(sizes[part]) - 1) // READ_BYTES
            part = part[np.lexsort((order[part], read_with))]
        yield part


def cut(sizes: NDArray[np.int64], pack: PackSpec) -> Iterator[tuple[int, int]]:
    """Where each shard of samples of so many bytes begins and ends."""
    edges = list(_edges(sizes, pack))
    multiple = pack.shards_multiple_of
    num_shards = math.ceil(len(edges) / multiple) * multiple
    if multiple > 1 and num_shards <= len(sizes):  # else there are too few samples
        bounds = np.linspace(0, len(sizes), num_shards + 1).astype(np.int64)
        edges = [(int(start), int(stop)) for start, stop in pairwise(bounds)]
    yield from edges


def _edges(sizes: NDArray[np.int64], pack: PackSpec) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    start, total = 0, len(sizes)
    while start < total:
        if pack.shard_samples:
            stop = start + pack.shard_samples
        else:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + int(pack.shard_bytes), side="right"))
        stop = min(total, max(stop, start + 1))
        yield start, stop
        start = stop
