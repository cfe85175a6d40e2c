"""Rows of a container as a table of samples, and how such a table is cut to be read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.objects.protocol import StoredFile
from headrace.packing.sample_table import SampleTable, repeated
from headrace.packing.samples import READ_BYTES


def table_of_rows(
    file: StoredFile, row_bytes: int, parts: Mapping[int, int], texts: Mapping[str, Any]
) -> Any:
    """Return the rows of one container, columns for a `SampleTable`.

    Args:
        file: The container.
        row_bytes: Bytes of each row.
        parts: Rows by the number of the container's part.
        texts: Label, group and split, of those that are known.
    """
    import pyarrow as pa

    num_rows, sizes = sum(parts.values()), list(parts.values())
    columns = {
        "path": repeated(f"{file.path}#{0:0{len(str(num_rows - 1))}}", num_rows),
        "row": np.arange(num_rows),
        "bytes": np.full(num_rows, row_bytes),
        "version": repeated(file.version, num_rows),
        "place_0": np.repeat(list(parts), sizes),
        "place_1": np.concatenate(list(map(np.arange, sizes))),
    }
    return pa.table({**columns, **texts})


def windows(refs: SampleTable) -> Iterator[tuple[int, int]]:
    """Where samples are cut that are read at once, about `READ_BYTES`.

    If it can be, all before a cut lie before all behind it, so that nothing is read twice.
    """
    ends, rows = np.cumsum(refs.numbers("bytes")), refs.numbers("row")
    containers = refs.column("path").indices.to_numpy().astype(np.int64)
    rows = rows + containers * (rows.max(initial=0) + 1)
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
