"""Rows of all containers of a source as one list of samples, and how it is cut to be read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.packing.listed import Coded, Listed, PlacesInContainers, RowPaths
from headrace.packing.samples import READ_BYTES


@dataclass(frozen=True, kw_only=True)
class ListedRows:
    """What is listed of one container."""

    path: str
    version: str
    num_rows: int
    row_bytes: int
    parts: Mapping[int, int]
    told: Mapping[str, Coded[str]]
    """Labels, groups and splits that columns tell."""
    split: str | None
    left_out: Mapping[int, str] = field(default_factory=dict)
    """Why rows are no samples, by their number."""


def together(found: Sequence[ListedRows]) -> Listed:
    """The rows of all containers."""
    if not found:
        return Listed((), (), ())
    sizes = [each.num_rows for each in found]
    told = {role: Coded.together([each.told[role] for each in found]) for role in found[0].told}
    splits = Coded.runs([each.split for each in found], sizes)
    parts = [item for each in found for item in each.parts.items()]
    part_sizes = [size for _, size in parts]
    at = np.arange(sum(sizes)) - np.repeat(np.cumsum([0, *part_sizes[:-1]]), part_sizes)
    listed = Listed(
        paths=RowPaths([each.path for each in found], sizes),
        sizes=Coded.runs([each.row_bytes for each in found], sizes),
        versions=Coded.runs([each.version for each in found], sizes),
        labels=told.get("label", ()),
        groups=told.get("group", ()),
        splits=told.get("split") or (splits if any(splits.values) else ()),
        places=PlacesInContainers(
            [
                np.repeat([len(each.path) for each in found], sizes),
                np.repeat([part for part, _ in parts], part_sizes),
                at,
            ]
        ),
    )
    if not any(each.left_out for each in found):
        return listed
    starts = np.cumsum([0, *sizes])
    pairs = zip(starts.tolist(), found, strict=False)
    left_out = [start + row for start, each in pairs for row in each.left_out]
    kept = listed.at(np.delete(np.arange(sum(sizes)), left_out))
    columns = {"labels": kept.labels, "groups": kept.groups, "splits": kept.splits}
    few = {name: each.tight() for name, each in columns.items() if isinstance(each, Coded)}
    return replace(kept, **few)


def windows(refs: Listed) -> Iterator[tuple[int, int]]:
    """Where samples are cut that are read at once, about `READ_BYTES`.

    If it can be, all before a cut lie before all behind it, so that nothing is read twice.
    """
    ends = np.cumsum(np.asarray(refs.sizes, dtype=np.int64))
    rows = refs.paths.rows if isinstance(refs.paths, RowPaths) else np.arange(len(refs))
    highest = np.maximum.accumulate(rows)[:-1]
    lowest = np.minimum.accumulate(rows[::-1])[::-1][1:]
    cuts = [0, *(np.flatnonzero(highest < lowest) + 1).tolist(), len(refs)]
    start = 0
    while start < len(refs):
        before = int(ends[start - 1]) if start else 0
        most = max(int(np.searchsorted(ends, before + READ_BYTES, side="right")), start + 1)
        cut = cuts[bisect_right(cuts, most) - 1]
        stop = cut if cut > start else most
        yield start, stop
        start = stop
