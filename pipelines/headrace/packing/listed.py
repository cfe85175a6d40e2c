"""Columns of listed samples: millions of them need no object each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError
from headrace.objects.protocol import StoredFile

T = TypeVar("T")

Picked: TypeAlias = "slice | NDArray[np.int64]"
"""Which items of a column."""

AT_ONCE = 2**10
"""Items that are objects at once."""


class SampleRef(NamedTuple):
    """One raw sample: where it lies, and what the listing knows of it."""

    path: str
    """Unique name below the source, with `/`: `cat/1.png`, `a.tar/000123`, `b.parquet#17`."""
    num_bytes: int
    """Bytes of its values as they are stored, from above; 0 when not known before reading."""
    version: str
    """Changes when the content does: modification time in nanoseconds, or ETag on S3."""
    label: str | None = None
    """Class name; null without labels, and when `dataset.label_kind` is `value`: the number is then
    the field `label`."""
    group: str | None = None
    """Samples of one group stay in one split; null without groups."""
    split: str | None = None
    """Split that the source gives; null when the recipe splits."""
    where: tuple[int, ...] = ()
    """Place inside a container, for the source's own use: offset and size, or row."""


class MadeColumn(Sequence[T]):
    """Items that are made when they are asked for."""

    def at(self, picked: Picked) -> MadeColumn[T]:
        """Some of the items."""
        raise NotImplementedError

    def _made(self, picked: slice) -> list[T]:
        """Some of the items, as objects."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), AT_ONCE):
            yield from self._made(slice(start, start + AT_ONCE))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.at(index)
        place = range(len(self))[index]
        return self._made(slice(place, place + 1))[0]


class Texts(MadeColumn[str]):
    """Texts one behind the other, 8 bytes each beside their own.

    Args:
        array: The texts, a `pyarrow.LargeStringArray`.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """The same texts as a column."""
        if isinstance(texts, Texts):
            return texts
        builder = TextsBuilder()
        builder.extend(texts)
        return builder.texts()

    def __len__(self) -> int:
        return len(self.array)

    def at(self, picked: Picked) -> Texts:
        """Some of the texts."""
        return Texts(self.array[picked] if isinstance(picked, slice) else self.array.take(picked))

    def _made(self, picked: slice) -> list[str]:
        return list(self.array[picked].to_numpy(zero_copy_only=False))

    def lengths(self, *, in_bytes: bool) -> NDArray[np.int64]:
        """Characters, or bytes in UTF-8, of each text."""
        from pyarrow import compute

        lengths = compute.binary_length if in_bytes else compute.utf8_length
        return np.asarray(lengths(self.array), dtype=np.int64)

    def encoded(self, picked: Picked) -> list[bytes]:
        """Some of the texts in UTF-8."""
        binary = self.at(picked).array.cast("large_binary")
        return list(binary.to_numpy(zero_copy_only=False))

    def without(self, others: Texts) -> list[str]:
        """The texts that are none of the others."""
        from pyarrow import compute

        known = compute.is_in(self.array, others.array)
        return list(Texts(self.array.filter(compute.invert(known))))

    def groups(self, pattern: str) -> list[Coded[str]]:
        """What each named group of a pattern (RE2) matches in each text.

        Raises:
            LookupError: The pattern does not match a text, which is named.
        """
        from pyarrow import compute

        found = compute.extract_regex(self.array, pattern)
        if found.null_count:
            raise LookupError(self[compute.index(found.is_null(), True).as_py()])
        return [Coded.of_arrow(column) for column in found.flatten()]


class TextsBuilder:
    """Texts of which more are to come."""

    def __init__(self) -> None:
        self._content, self._ends = bytearray(), numbers((0,))

    def extend(self, texts: Iterable[str]) -> None:
        """Add texts."""
        for text in map(str.encode, texts):
            self._content += text
            self._ends.append(len(self._content))

    def texts(self) -> Texts:
        """All texts; there can be no more afterwards."""
        import pyarrow as pa

        buffers = pa.py_buffer(self._ends), pa.py_buffer(self._content)
        return Texts(pa.LargeStringArray.from_buffers(len(self._ends) - 1, *buffers))


class Times(MadeColumn[str]):
    """Versions that are times."""

    def __init__(self, times_ns: array[int]) -> None:
        self.times_ns = times_ns

    def __len__(self) -> int:
        return len(self.times_ns)

    def at(self, picked: Picked) -> Times:
        """Some of the items."""
        return Times(array("q", np.asarray(self.times_ns)[picked].tobytes()))

    def _made(self, picked: slice) -> list[str]:
        return list(map(str, self.times_ns[picked]))


@dataclass(frozen=True, eq=False)
class Coded(MadeColumn[T], Generic[T]):
    """A few values, each of which many items have."""

    values: tuple[T, ...]
    codes: NDArray[Any]
    """Number of each item's value, `(num_items,)`."""

    @classmethod
    def of(cls, items: Iterable[T]) -> Coded[T]:
        """The items, values in the order in which they are met."""
        if isinstance(items, Coded):
            return items
        known: dict[Hashable, int] = {}
        values: list[T] = []
        codes = array("q")
        for item in items:
            key = (type(item), item if isinstance(item, Hashable) else repr(item))
            code = known.setdefault(key, len(values))
            if code == len(values):
                values.append(item)
            codes.append(code)
        return cls(tuple(values), narrow(np.asarray(codes)))

    @classmethod
    def of_arrow(cls, texts: Any) -> Coded[Any]:
        """The items of an Arrow array."""
        found = texts.dictionary_encode()
        return cls(tuple(found.dictionary.to_pylist()), narrow(found.indices.to_numpy()))

    @classmethod
    def together(cls, parts: Sequence[Coded[T]]) -> Coded[T]:
        """The items of several columns, one after the other; equal values are one."""
        number_of: dict[T, int] = {}
        for part in parts:
            for value in part.values:
                number_of.setdefault(value, len(number_of))
        codes = [
            np.array([number_of[value] for value in part.values], dtype=np.int64)[part.codes]
            for part in parts
        ]
        return cls(tuple(number_of), narrow(np.concatenate(codes)))

    @classmethod
    def runs(cls, values: Sequence[T], lengths: Sequence[int]) -> Coded[T]:
        """Each value as often as told."""
        codes = np.arange(len(values), dtype=np.min_scalar_type(max(len(values) - 1, 0)))
        return cls(tuple(values), np.repeat(codes, lengths))

    def tight(self) -> Coded[T]:
        """The same items, without values that none of them has."""
        used, codes = np.unique(self.codes, return_inverse=True)
        return Coded(tuple(self.values[code] for code in used.tolist()), narrow(codes))

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, picked: Picked) -> Coded[T]:
        """Some of the items."""
        return Coded(self.values, self.codes[picked])

    def _made(self, picked: slice) -> list[T]:
        return list(map(self.values.__getitem__, self.codes[picked].tolist()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = np.asarray(self.values, dtype=dtype)[self.codes]
        return found


class PlacesInContainers(MadeColumn[tuple[int, ...]]):
    """Places inside containers, of equally many numbers each."""

    def __init__(self, columns: Sequence[NDArray[Any]]) -> None:
        self.columns = tuple(map(narrow, columns))
        """Each number of all places, `(num_items,)`."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def at(self, picked: Picked) -> PlacesInContainers:
        """Some of the items."""
        return PlacesInContainers([column[picked] for column in self.columns])

    def _made(self, picked: slice) -> list[tuple[int, ...]]:
        return list(zip(*(column[picked].tolist() for column in self.columns), strict=True))


class RowPaths(MadeColumn[str]):
    """Names of rows, the containers' names with a row's number: `b.parquet#17`.

    Attributes:
        names: Names of the containers.
        sizes: Rows in each container.
        rows: Row of each item, `(num_items,)`, counted over all containers.
    """

    def __init__(
        self, names: Sequence[str], sizes: Sequence[int], rows: NDArray[Any] | None = None
    ) -> None:
        self.names = tuple(names)
        self.sizes = tuple(sizes)
        self.rows = narrow(np.arange(sum(sizes)) if rows is None else rows)
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)
        self._widths = [len(str(max(size - 1, 0))) for size in sizes]

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, picked: Picked) -> RowPaths:
        """Some of the items."""
        found = copy(self)
        found.rows = self.rows[picked]
        return found

    def tight(self) -> RowPaths:
        """The same items, without containers that none of them is in."""
        used, of = np.unique(self.containers(), return_inverse=True)
        sizes = np.diff(self._starts)[used]
        starts = np.cumsum(sizes) - sizes
        rows = self.rows.astype(np.int64) + (starts - self._starts[used])[of]
        return RowPaths([self.names[number] for number in used.tolist()], sizes.tolist(), rows)

    def containers(self) -> NDArray[np.int64]:
        """Number of the container of each item, `(num_items,)`."""
        return np.searchsorted(self._starts, self.rows, side="right") - 1

    def lengths(self, *, in_bytes: bool) -> NDArray[np.int64]:
        """Characters, or bytes, of each name."""
        pairs = zip(self.names, self._widths, strict=True)
        of_each = [len(n.encode() if in_bytes else n) + 1 + width for n, width in pairs]
        return np.array(of_each, dtype=np.int64)[self.containers()]

    def _made(self, picked: slice) -> list[str]:
        return list(map(bytes.decode, self.encoded(picked)))

    def encoded(self, picked: Picked) -> list[bytes]:
        """Some of the names in UTF-8."""
        rows = self.rows[picked]
        of = np.searchsorted(self._starts, rows, side="right") - 1
        if not len(rows):
            return []
        if of[0] == of.min() == of.max():
            return self._named(int(of[0]), rows)
        found = np.empty(len(rows), dtype=object)
        for number in np.unique(of):
            found[of == number] = self._named(int(number), rows[of == number])
        return list(found)

    def _named(self, number: int, rows: NDArray[np.int64]) -> list[bytes]:
        """Names of rows of one container."""
        prefix = np.frombuffer(f"{self.names[number]}#".encode(), dtype=np.uint8)
        tens = 10 ** np.arange(self._widths[number], dtype=np.int64)[::-1]
        texts = np.empty((len(rows), len(prefix) + len(tens)), dtype=np.uint8)
        texts[:, : len(prefix)] = prefix
        digits = (rows - self._starts[number])[:, None] // tens % 10
        texts[:, len(prefix) :] = digits + ord("0")
        names: list[bytes] = texts.view(f"S{texts.shape[1]}")[:, 0].tolist()
        return names


_NONE = (None, None, None, ())  # what a sample has without label, group, split and place
_NUM_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Listed(Sequence[SampleRef]):
    """References of samples, made when one is asked for; what they are made of lies in columns.

    Columns of labels, groups, splits and places are empty where no sample has one.
    """

    paths: Sequence[str]
    sizes: Sequence[int]
    versions: Sequence[str]
    labels: Sequence[str | None] = ()
    groups: Sequence[str | None] = ()
    splits: Sequence[str | None] = ()
    places: Sequence[tuple[int, ...]] = ()
    values: Sequence[str] = ()
    """One hash of the values that an index has for all of them; empty for none."""

    def at(self, indices: Sequence[int] | NDArray[np.int64]) -> Listed:
        """Some of the samples, in the order of `indices`."""
        return Listed(*(taken(each, indices) if len(each) else () for each in self._columns()))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[SampleRef]:
        own, others = self._columns()[:3], self._columns()[3:]
        rest = (each or repeat(none) for each, none in zip(others, _NONE, strict=True))
        return map(SampleRef, *own, *rest)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Listed(*(each[index] for each in self._columns()))
        own, others = self._columns()[:3], self._columns()[3:]
        rest = (each[index] if each else none for each, none in zip(others, _NONE, strict=True))
        return SampleRef(*(each[index] for each in own), *rest)

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return (
            *(self.paths, self.sizes, self.versions),
            *(self.labels, self.groups, self.splits, self.places),
        )


def files_of(refs: Iterable[SampleRef]) -> list[StoredFile]:
    """Samples that are files."""
    return [StoredFile(*ref[:3]) for ref in refs]


def shown(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    more = ", …" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def narrow(column: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers that are not negative, in the fewest bytes that hold them."""
    return column.astype(np.min_scalar_type(int(column.max())) if len(column) else np.uint8)


def numbers(values: Iterable[int]) -> array[int]:
    """A column of whole numbers, 8 bytes each."""
    if isinstance(values, np.ndarray):
        return array("q", values.astype(np.int64).tobytes())
    return array("q", values)


def taken(column: Sequence[T], indices: Sequence[int] | NDArray[np.int64]) -> Sequence[T]:
    """Items of a column at some places; a column of its own kind stays one."""
    if isinstance(column, MadeColumn):
        return column.at(np.asarray(indices, dtype=np.int64))
    if isinstance(column, array):
        picked = np.asarray(column)[np.asarray(indices, dtype=np.int64)]
        return array(column.typecode, picked.tobytes())  # type: ignore[return-value]
    places = indices.tolist() if isinstance(indices, np.ndarray) else indices
    return tuple(map(column.__getitem__, places))


def text_column(texts: Sequence[str]) -> Texts | RowPaths:
    """The same texts as a column."""
    return texts if isinstance(texts, RowPaths) else Texts.of(texts)


def in_order(listed: Listed) -> tuple[Listed, int]:
    """The samples in the order of their paths, and the first whose path the next has, or -1."""
    from pyarrow import compute

    paths = Texts.of(listed.paths).array
    if not compute.all(compute.less(paths[:-1], paths[1:])).as_py():
        listed = listed.at(compute.sort_indices(paths).to_numpy().view(np.int64))
        paths = Texts.of(listed.paths).array
    return listed, compute.index(compute.equal(paths[:-1], paths[1:]), True).as_py()


def by_path(listed: Listed) -> Listed:
    """The samples in the order of their paths.

    Raises:
        DataError: Two of them have the same path.
    """
    listed, twice = in_order(listed)
    if twice >= 0:
        path = listed.paths[twice]
        raise DataError(f"There are two samples '{path}'", "Rename or remove one of them.")
    return listed
