"""Which samples make which split, fold and shard: pure functions of a listing and the recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from headrace.errors import DataError, RecipeError, UnclearNamesError
from headrace.files.manifest import ColumnNote, Quarantined
from headrace.packing.sample_table import SampleTable, joined, narrow, shown, stop_within, strings
from headrace.packing.samples import READ_BYTES
from headrace.packing.sources.folder_layout import split_named
from headrace.packing.splits import (
    Indices,
    assign_groups,
    assign_splits,
    in_order,
    remaining_shares,
)
from headrace.recipe.dataset import TRAIN, VALIDATION, DatasetSpec, PackSpec, in_split_order


@dataclass(frozen=True, kw_only=True)
class SourceListing:
    """What lies in the source."""

    source: str
    samples: SampleTable
    """Its samples, sorted by path; the codes of their labels are class indices (`with_classes`)."""
    sequential: bool = False
    """Whether a shard should hold neighbours."""
    quarantined: tuple[Quarantined, ...] = ()
    """Samples that were left out."""
    code: str = ""
    """Hash of the user's code that makes the values, and the fields that EXIF may turn."""
    notes: tuple[str | ColumnNote, ...] = ()
    """How the samples were found, for people."""
    earlier: tuple[tuple[str, int | None], ...] = ()
    """Splits with folds of an earlier dataset; the column `earlier` of `samples` has the index of
    each sample's, null for a new sample."""
    keeps: bool = False
    """Whether samples stay in their earlier splits and folds."""
    appends: bool = False
    """Whether only new samples are packed, so that splits without one may be empty."""

    @property
    def earlier_index(self) -> NDArray[np.int64]:
        """Index in `earlier` of each sample, `(num_samples,)`; -1 for a new sample."""
        column = self.samples.column("earlier")
        if column is None:
            return np.full(len(self.samples), -1)
        return np.asarray(column.cast("int64").fill_null(-1))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by class index; empty without labels."""
        label = self.samples.column("label")
        return () if label is None else tuple(label.dictionary.to_pylist())

    @property
    def class_indices(self) -> NDArray[np.int64]:
        """Class index of each sample, `(num_samples,)`; empty without labels."""
        label = self.samples.column("label")
        return np.empty(0, np.int64) if label is None else np.asarray(label.indices, np.int64)


_NO_VALUE = {"na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-"}


def with_classes(samples: SampleTable, classes: Sequence[str] = ()) -> SampleTable:
    """Return samples the codes of whose labels are class indices.

    `classes` are in their order; if empty, labels are ordered by number if all are whole numbers,
    else by alphabet.
    """
    label = samples.column("label")
    if label is None:
        return samples
    names = label.dictionary.to_pylist()
    as_numbers = all(name.isdecimal() and name.isascii() for name in names)
    key = (lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)) if as_numbers else None
    ordered = strings(classes or sorted(names, key=key))
    codes = narrow(pc.index_in(label.dictionary, ordered).take(label.indices))
    return samples.with_columns(label=pa.DictionaryArray.from_arrays(codes, ordered))


def check_names(dataset: DatasetSpec, samples: SampleTable) -> list[str]:
    """Return notes on names of classes and splits that differ in case, or are not well known.

    Raises:
        UnclearNamesError: Names differ in spaces or Unicode form only, those of splits in case.
        RecipeError: The source has a split that folds make.
    """
    columns = map(samples.column, ("label", "split"))
    classes, splits = (each.dictionary.to_pylist() if each is not None else [] for each in columns)
    if dataset.folds is not None and VALIDATION in splits:
        raise RecipeError(
            "dataset.folds is set, but the source has a split 'val'",
            "Folds are the validation: leave dataset.folds out, or the samples of 'val'.",
        )
    for what, names, alike in (
        ("Classes", classes, _normal),
        ("Splits", splits, lambda name: _normal(name).casefold()),
    ):
        for one, other in _pairs(names, alike):
            raise UnclearNamesError(
                f"{what} {one!r} and {other!r} differ only in case, spaces or Unicode form",
                "Give samples that belong together the same name.",
            )
    cases = _pairs(classes, str.casefold)
    nothing = (name for name in classes if name.casefold() in _NO_VALUE)
    notes = [f"class '{name}' may mean that there is none" for name in nothing]
    notes += [f"all samples are of one class, '{classes[0]}'"] if len(classes) == 1 else []
    notes += [f"classes {one!r} and {other!r} differ only in case" for one, other in cases]
    return notes + [
        f"split '{name}' is not the split '{known}'"
        for name in splits
        if (known := split_named(name)) not in ("", name)
    ]


def _normal(name: str) -> str:
    return " ".join(normalize("NFC", name).split())


def _pairs(names: Sequence[str], alike: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield names whose part that counts is equal."""
    known: dict[str, str] = {}
    for name in names:
        if (first := known.setdefault(alike(name), name)) != name:
            yield first, name


def split_samples(
    dataset: DatasetSpec, listing: SourceListing, order: NDArray[np.uint64]
) -> dict[str, Indices]:
    """Indices of the samples of each split, in the order of the shards.

    `order` has the `ranks` of all samples.
    """
    samples = listing.samples
    if (split := samples.column("split")) is not None:
        names = split.dictionary.to_pylist()
        codes = split.indices.cast("int64").fill_null(-1).to_numpy()
        return {
            name: in_order(np.flatnonzero(codes == names.index(name)), order)
            for name in in_split_order(set(names))
        }
    earlier = [split for split, _ in listing.earlier]
    splits = _assign(dataset, listing, dataset.splits, order, earlier)
    for name, share in dataset.splits.items():
        if share > 0 and not len(splits[name]) and not listing.appends:
            raise RecipeError(
                f"Split '{name}' would be empty: {len(samples)} samples at a share of {share:g}",
                _more(samples, "Raise its share in dataset.splits"),
            )
    return splits


def _assign(
    dataset: DatasetSpec,
    listing: SourceListing,
    shares: dict[str, float],
    order: NDArray[np.uint64],
    earlier: Sequence[str],
) -> dict[str, Indices]:
    """Indices of each part; `earlier` has the parts of the listing's earlier places."""
    if not listing.keeps:
        return _divided(dataset, listing, shares, order)
    kept = _kept(listing, list(shares), earlier)
    counts = {name: int((kept == number).sum()) for number, name in enumerate(shares)}
    rest = np.flatnonzero(kept < 0)
    others = replace(listing, samples=listing.samples.take(rest))
    found = _divided(dataset, others, remaining_shares(shares, counts, len(rest)), order[rest])
    whole = {
        name: np.concatenate([np.flatnonzero(kept == number), rest[found[name]]])
        for number, name in enumerate(shares)
    }
    return {name: in_order(indices, order) for name, indices in whole.items()}


def _kept(listing: SourceListing, names: list[str], earlier: Sequence[str]) -> Indices:
    """Index in `names` of the part in which each sample stays, -1 for others.

    All samples of a group, also new ones, are in the last part that has an earlier one of it: none
    leaves the test samples.
    """
    parts = np.array([*(names.index(part) if part in names else -1 for part in earlier), -1])
    kept: Indices = parts[listing.earlier_index]
    group = listing.samples.column("group")
    if group is not None:
        codes, of_group = group.indices.fill_null(0).to_numpy(), group.is_valid().to_numpy(False)
        part_of = np.full(len(group.dictionary), -1)
        np.maximum.at(part_of, codes[of_group], kept[of_group])
        kept[of_group] = part_of[codes[of_group]]
    return kept


def _divided(
    dataset: DatasetSpec,
    listing: SourceListing,
    shares: dict[str, float],
    order: NDArray[np.uint64],
) -> dict[str, Indices]:
    samples, seed = listing.samples, dataset.split_seed
    classes = listing.class_indices if dataset.stratify else ()
    group = samples.column("group")
    if group is None:
        return assign_splits(samples.iter_paths(), classes, shares, seed, order)
    # a sample without a group is one of its own
    groups = pc.coalesce(group.cast("large_string"), joined("\0", samples.paths))
    return assign_groups(groups.to_numpy(zero_copy_only=False), classes, shares, seed, order)


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
    chosen = replace(listing, samples=listing.samples.take(indices))
    earlier = [str(fold) for _, fold in listing.earlier]
    for name, part in _assign(dataset, chosen, shares, order[indices], earlier).items():
        if not len(part) and not listing.appends:
            raise RecipeError(
                f"Fold {name} of {dataset.folds} would be empty: split '{split}' has "
                f"{len(indices):,} samples",
                _more(listing.samples, "Lower dataset.folds"),
            )
        yield int(name), indices[part]


Division = Sequence[tuple[str, int | None, Indices]]
"""Splits, folds and the samples in them."""


def compared(listing: SourceListing, division: Division) -> tuple[Division, list[str]]:
    """Return a division, if samples are appended without earlier ones, and what became of these.

    Raises:
        DataError: Samples are appended, but an earlier one has another split or fold.
    """
    now, was = np.full(len(listing.samples), -1), listing.earlier_index
    for split, fold, part in division:
        if (split, fold) in listing.earlier:
            now[part] = listing.earlier.index((split, fold))
    moved, num_earlier = np.flatnonzero((was >= 0) & (was != now)), int((was >= 0).sum())
    if not listing.appends:
        what = f"{len(moved):,} of {num_earlier:,} samples changed their split or fold"
        what = what if len(moved) else f"{num_earlier:,} samples stay in their splits"
        return division, [f"{what}, compared with an earlier dataset"] if num_earlier else []
    if len(moved):
        raise DataError(
            f"The splits of {len(moved):,} packed samples cannot be kept: the source has other "
            f"splits or groups for {shown(listing.samples.take(moved).paths.to_pylist())}",
            "Pack without pack.append, which makes a new dataset.",
        )
    return [(split, fold, part[was[part] < 0]) for split, fold, part in division], []


def _more(samples: SampleTable, otherwise: str) -> str:
    if samples.column("group") is not None:
        return f"Samples of a group stay together. {otherwise}, or add samples of other groups."
    return f"{otherwise}, or add samples."


def shards_of(
    indices: Indices, sizes: NDArray[np.int64], order: NDArray[np.uint64] | None, pack: PackSpec
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
    multiple = int(pack.shards_multiple_of)  # `auto` was replaced when the run was made
    num_shards = math.ceil(len(edges) / multiple) * multiple
    if multiple > 1 and num_shards <= len(sizes):  # else there are too few samples
        bounds = np.linspace(0, len(sizes), num_shards + 1).astype(np.int64)
        edges = [(int(start), int(stop)) for start, stop in pairwise(bounds)]
    yield from edges


def _edges(sizes: NDArray[np.int64], pack: PackSpec) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    start, total = 0, len(sizes)
    while start < total:
        stop = start + (pack.shard_samples or 0)
        if not pack.shard_samples:
            stop = stop_within(ends, start, int(pack.shard_bytes))
        yield start, min(stop, total)
        start = stop
