"""Names and constants of the shard format, version 1; the spec is `dataset-format.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

MEND = (
    "A staged copy: `headrace cache verify` on that node removes damaged shards, and the next run "
    "stages them again. The dataset itself: `headrace verify` lists its damaged shards; remove "
    "them, and packing again makes only them again."
)
"""Next step for a damaged shard, in a dataset or in a copy of one."""

SHARD_FORMAT = 1
"""Version of the shard format, the file attribute `headrace_format`."""

FORMAT_ATTRIBUTE = "headrace_format"
"""File attribute with the format's version."""

SPLIT_ATTRIBUTE = "split"
"""File attribute with the split of all samples of the shard."""

FIELDS_GROUP = "fields"
"""Group of the fields of a sample."""

SAMPLE_ID = "sample_id"
"""Dataset `(num_samples,) int64`: number of the sample, unique in the whole dataset."""

CHECKSUM = "checksum"
"""Dataset `(num_samples,) uint64`: XXH3 (64 bits) over the bytes of all fields of the sample."""

SHAPES = "shapes"
"""Dataset of a ragged group of arrays: shape of each sample, `(num_samples, ndim) int64`."""

SOURCE = "source"
"""Ragged group of UTF-8 source paths."""

DATA = "data"
"""Dataset of a ragged group: all bytes, `(num_bytes,) uint8`."""

OFFSETS = "offsets"
"""Dataset of a ragged group: where samples begin and end in `data`, `(num_samples + 1,) int64`."""

ALIGNMENT_BYTES = 64
"""Every array begins at a multiple of this in the file."""

HEADER_BYTES = 16 * 2**10
"""Upper estimate of the bytes of a shard besides its samples."""

_SMALL_BYTES = 2**16
_MOST_RATIO = 1032
_HASHED_TOGETHER_BYTES = 64 * 2**10  # below, copying is faster than hashing in parts


def most_bytes(stored_bytes: int) -> int:
    """Return the most bytes that stored ones can expand to; more is a false header or a bomb.

    The ratio is the highest that deflate reaches.
    """
    return _SMALL_BYTES + _MOST_RATIO * stored_bytes


def sample_checksums(columns: Sequence[Sequence[Any]]) -> NDArray[np.uint64]:
    """Return XXH3 (64 bits) over the bytes of all fields of each sample, `(num_samples,) uint64`.

    `columns` are the bytes of each sample, by field in the manifest's order.
    """
    first, *others = columns
    digest = xxhash.xxh3_64_intdigest
    if not others:
        hashes = map(digest, first)
    elif max(map(len, first), default=0) < _HASHED_TOGETHER_BYTES:
        hashes = map(digest, map(b"".join, zip(*columns, strict=True)))
    else:
        hashes = map(_checksum, first, map(b"".join, zip(*others, strict=True)))
    return np.fromiter(hashes, dtype=np.uint64, count=len(first))


def row_checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Do the same as `sample_checksums` for rows of bytes, `(num_samples, num_bytes)`."""
    each = rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, each), dtype=np.uint64, count=len(each))


def _checksum(first: Any, rest: bytes) -> int:
    state = xxhash.xxh3_64(first)
    state.update(rest)
    return int(state.intdigest())
