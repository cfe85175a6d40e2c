"""Samples as rows of an Arrow table: millions of them need no object each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from headrace.errors import DataError
from headrace.objects.protocol import StoredFile

ROLES = ("label", "group", "split")
"""Columns of texts that many samples share; a table may lack them."""

_AT_ONCE = 2**10  # samples that are objects at once
_PLACE = "place_"
CARRIED = "value_"
"""What columns begin with that hold values of samples, which workers then need not read again."""
_NUM_SHOWN = 5


class SampleRef(NamedTuple):
    """One raw sample: where it lies, and what the listing knows of it."""

    path: str
    """Unique name below the source, with `/`: `cat/1.png`, `a.tar/000123`, `b.parquet#17`."""
    num_bytes: int
    """Upper bound of the bytes of its values as they are stored; 0 if unknown before reading."""
    version: str
    """Changes with the content: modification time in nanoseconds, or ETag on S3."""
    label: str | None = None
    """Class name; null without labels, and when `dataset.label_kind` is `value`: the number is then
    the field `label`."""
    group: str | None = None
    """Samples of one group stay in one split; null without groups."""
    split: str | None = None
    """Split that the source gives; null when the recipe splits."""
    where: tuple[int, ...] = ()
    """Place inside a container, for the source's own use: offset and size, or part and row."""


@dataclass(frozen=True, eq=False)
class SampleTable(Sequence[SampleRef]):
    """Samples; a `SampleRef` is made from a slice of the table when it is read."""

    table: Any
    """A `pyarrow.Table`. Its columns are `path` (strings; or, for rows, a dictionary of the path of
    each container's first row, and the number of the row as `row`), `bytes`, `version` (strings, or
    times in nanoseconds), those of `ROLES` (dictionaries), `place_0` and so on (numbers), and
    `class_index`."""
    index_hash: str = ""
    """Hash of all values that an index file has for the samples; empty without an index."""

    @classmethod
    def of(cls, *, path: Any, places: Iterable[Any] = (), **columns: Any) -> SampleTable:
        """Return samples of Arrow or NumPy arrays; a role may be a list of texts, or None."""
        columns["path"] = path if isinstance(path, pa.Array) else strings(path)
        for role in ROLES:
            cells = columns.pop(role, None)
            if isinstance(cells, list):
                cells = strings(cells).dictionary_encode()
            if cells is not None and cells.null_count < len(cells):
                columns[role] = cells
        columns |= {f"{_PLACE}{number}": column for number, column in enumerate(places)}
        return cls(pa.table(columns)).compact()

    @classmethod
    def concatenated(cls, tables: Sequence[Any]) -> SampleTable:
        """Return the samples of tables of the same columns."""
        return cls(pa.concat_tables(tables)).compact()

    def compact(self) -> SampleTable:
        """Return the same samples in fewer bytes: short numbers, no values without a sample."""
        columns = {name: self.column(name) for name in self.table.column_names}
        for name, column in columns.items():
            if pa.types.is_dictionary(column.type):
                columns[name] = _compact(column)
            elif pa.types.is_integer(column.type) and not name.startswith(("version", CARRIED)):
                columns[name] = narrow(column)
        return SampleTable(pa.table(columns), self.index_hash)

    def with_columns(self, **columns: Any) -> SampleTable:
        """Return the samples with columns added or replaced, or removed where one is None."""
        own = zip(self.table.column_names, self.table.columns, strict=True)
        whole = (dict(own) | columns).items()
        kept = {name: column for name, column in whole if column is not None}
        return SampleTable(pa.table(kept), self.index_hash)

    def take(self, indices: NDArray[Any]) -> SampleTable:
        """Return some of the samples, in the order of their indices."""
        return SampleTable(self.table.take(indices), self.index_hash)

    def column(self, name: str) -> Any:
        """Return a column as one `pyarrow.Array`, or None if the table lacks it."""
        if name not in self.table.column_names:
            return None
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def has(self, name: str) -> bool:
        """Return whether the table has a column."""
        return name in self.table.column_names

    def numbers(self, name: str) -> NDArray[np.int64]:
        """Return a column of whole numbers, `(num_samples,)`; empty if the table lacks it."""
        column = self.column(name)
        return np.empty(0, np.int64) if column is None else np.asarray(column.cast("int64"))

    @property
    def places(self) -> list[Any]:
        """The columns of numbers that find a sample in its container."""
        return [self.column(name) for name in self.table.column_names if name.startswith(_PLACE)]

    @property
    def paths(self) -> Any:
        """Paths of all samples, a `pyarrow.LargeStringArray`."""
        path = self.column("path")
        if not pa.types.is_dictionary(path.type):
            return path
        firsts = [name.rpartition("#")[::2] for name in path.dictionary.to_pylist()]
        heads = strings([f"{name}#" for name, _ in firsts]).take(path.indices)
        powers = np.array([10 ** len(digits) for _, digits in firsts], dtype=np.int64)
        rows = pa.array(self.numbers("row") + powers[path.indices.to_numpy()])
        return joined(heads, pc.utf8_slice_codeunits(rows.cast("large_string"), 1))

    def iter_paths(self) -> Iterator[str]:
        """Yield the path of each sample."""
        for start in range(0, len(self), _AT_ONCE):
            yield from _objects(self[start : start + _AT_ONCE].paths)

    def path_lengths(self, *, in_bytes: bool) -> NDArray[np.int64]:
        """Return the characters, or bytes in UTF-8, of each path."""
        length = pc.binary_length if in_bytes else pc.utf8_length
        path = self.column("path")
        if pa.types.is_dictionary(path.type):  # all rows of a container have names of one length
            return np.asarray(length(path.dictionary).take(path.indices))
        return np.asarray(length(path))

    def __len__(self) -> int:
        length: int = self.table.num_rows
        return length

    def __iter__(self) -> Iterator[SampleRef]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE].objects()

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            at = range(len(self))[index]
            return self[at : at + 1].objects()[0]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.take(np.arange(len(self))[index])
        return SampleTable(self.table.slice(start, max(stop - start, 0)), self.index_hash)

    def objects(self) -> list[SampleRef]:
        """Return all samples as Python objects."""
        roles = [_objects(column) if column else repeat(None) for column in map(self.column, ROLES)]
        places = map(_objects, self.places)
        return list(
            map(
                SampleRef,
                _objects(self.paths),
                _objects(self.column("bytes")),
                map(str, _objects(self.column("version"))),
                *roles,
                zip(*places, strict=True) if self.places else repeat(()),
            )
        )


def columns_of(rows: Iterable[Sequence[Any]], *types: Any) -> list[Any]:
    """Return rows as Arrow arrays of some types; few rows at once are Python objects.

    Raises:
        UnicodeEncodeError: A text is not UTF-8.
    """
    chunks: list[list[Any]] = [[] for _ in types]
    left = iter(rows)
    while some := tuple(islice(left, _AT_ONCE)):
        for column, cells, kind in zip(chunks, zip(*some, strict=True), types, strict=True):
            column.append(pa.array(cells, kind))
    pairs = zip(chunks, types, strict=True)
    columns = [pa.chunked_array(each, kind).combine_chunks() for each, kind in pairs]
    chunks.clear()
    give_back_small_blocks()
    return columns


def give_back_small_blocks() -> None:
    """Give memory that was freed in small blocks, as of parts of a table, back to the system."""
    pa.default_memory_pool().release_unused()


def strings(texts: Any) -> Any:
    """Return texts as a `pyarrow.LargeStringArray`."""
    return pa.array(texts, pa.large_string())


def joined(*parts: Any, separator: str = "") -> Any:
    """Return the texts of several arrays, or of one text and arrays, joined row by row."""
    texts = (*parts, separator)
    large = (pa.scalar(t, pa.large_string()) if isinstance(t, str) else t for t in texts)
    return pc.binary_join_element_wise(*large)


def repeated(text: str, times: int) -> Any:
    """Return a text, repeated, as a dictionary array."""
    return pa.DictionaryArray.from_arrays(np.zeros(times, dtype=np.int32), strings([text]))


def coded_texts(texts: Sequence[str | None], codes: Any) -> Any:
    """Return a dictionary array of texts by their codes; equal texts become one value."""
    found = strings(texts).dictionary_encode()
    return pa.DictionaryArray.from_arrays(found.indices.take(codes), found.dictionary)


def extracted(texts: Any, pattern: str) -> list[Any]:
    """Return what each named group of a pattern (RE2) matches, as dictionary arrays.

    Raises:
        LookupError: The pattern does not match the text that is the error's argument.
    """
    found = pc.extract_regex(texts, pattern)
    if found.null_count:
        raise LookupError(texts[pc.index(found.is_null(), True).as_py()].as_py())
    return [column.dictionary_encode() for column in found.flatten()]


def narrow(numbers: Any) -> Any:
    """Return whole numbers that are not negative in the fewest bytes that hold them."""
    most = pc.max(numbers).as_py() or 0
    return numbers.cast(pa.from_numpy_dtype(np.min_scalar_type(most)))


def _compact(column: Any) -> Any:
    """Return a dictionary array without unused values, the others in their order."""
    used = pc.unique(column.indices).drop_null().sort()
    codes = narrow(pc.index_in(column.indices, used))
    return pa.DictionaryArray.from_arrays(codes, column.dictionary.take(used))


def _objects(column: Any) -> list[Any]:
    """Return a column as Python objects, several times as fast as `to_pylist`."""
    objects: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return objects


def files_of(refs: Iterable[SampleRef]) -> list[StoredFile]:
    """Return samples that are files as these."""
    return [StoredFile(*ref[:3]) for ref in refs]


def stop_within(ends: NDArray[np.int64], start: int, num_bytes: int) -> int:
    """Return where the samples end that fit into some bytes, from a first one on; at least one.

    `ends` has the bytes up to the end of each sample.
    """
    before = int(ends[start - 1]) if start else 0
    return max(int(np.searchsorted(ends, before + num_bytes, side="right")), start + 1)


def shown(names: Sequence[str]) -> str:
    """Return the first names of a list, for messages."""
    more = ", …" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def in_order(samples: SampleTable) -> tuple[SampleTable, int]:
    """Return samples in the order of their paths, and the first whose path the next has, or -1."""
    paths = samples.paths
    if not pc.all(pc.less(paths[:-1], paths[1:])).as_py():
        samples = samples.take(pc.sort_indices(paths))
        paths = samples.paths
    return samples, pc.index(pc.equal(paths[:-1], paths[1:]), True).as_py()


def by_path(samples: SampleTable) -> SampleTable:
    """Return samples in the order of their paths; `DataError` if two have the same path."""
    samples, twice = in_order(samples)
    if twice >= 0:
        path = samples[twice].path
        raise DataError(f"There are two samples '{path}'", "Rename or remove one of them.")
    return samples
