"""The samples of a source as columns: millions of them need no object each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter, lt
from typing import Any, TypeVar, overload

import numpy as np

from headrace.packing.samples import SampleRef
from headrace.storage.store import StoredFile

T = TypeVar("T")

_INT64 = "q"  # type code of an array
_OPTIONAL = {"label": None, "group": None, "split": None, "where": ()}


class Times(Sequence[str]):
    """Versions that are times; each is made a text when one is asked for.

    Args:
        times_ns: When each file was written to last, nanoseconds since the epoch.
    """

    def __init__(self, times_ns: array[int]) -> None:
        self.times_ns = times_ns

    @classmethod
    def of(cls, versions: Sequence[str]) -> Times:
        """The times that versions stand for."""
        return versions if isinstance(versions, Times) else cls(numbers(map(int, versions)))

    def __len__(self) -> int:
        return len(self.times_ns)

    def __iter__(self) -> Iterator[str]:
        return map(str, self.times_ns)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Times: ...

    def __getitem__(self, index: int | slice) -> str | Times:
        if isinstance(index, slice):
            return Times(self.times_ns[index])
        return str(self.times_ns[index])


class Listed(Sequence[SampleRef]):
    """References of samples, made when one is asked for; what they are made of lies in columns.

    Args:
        paths: Name of each.
        sizes: Bytes of each.
        versions: Version of each.
        columns: By name, as in `SampleRef`, what else is known of each; a name that is not there
            is known of none.
    """

    def __init__(
        self,
        paths: Sequence[str],
        sizes: Sequence[int],
        versions: Sequence[str],
        **columns: Sequence[Any],
    ) -> None:
        self.paths = paths
        self.sizes = sizes
        self.versions = versions
        self._columns = columns

    @classmethod
    def of(cls, refs: Sequence[SampleRef]) -> Listed:
        """The columns of references."""
        if isinstance(refs, Listed):
            return refs
        if not refs:
            return cls((), (), ())
        paths, sizes, versions, *rest = zip(*refs, strict=True)
        names = zip(_OPTIONAL.items(), rest, strict=True)
        known = {name: each for (name, none), each in names if any(v != none for v in set(each))}
        return cls(paths, sizes, versions, **known)

    @property
    def labels(self) -> Sequence[str | None]:
        """Class name of each; empty when none has one."""
        return self._columns.get("label", ())

    @property
    def groups(self) -> Sequence[str | None]:
        """Group of each; empty when none has one."""
        return self._columns.get("group", ())

    @property
    def splits(self) -> Sequence[str | None]:
        """Split of each, where the source gives it; empty when it gives none."""
        return self._columns.get("split", ())

    @property
    def places(self) -> Sequence[tuple[int, ...]]:
        """Place of each in its container; empty when none has one."""
        return self._columns.get("where", ())

    def having(self, **columns: Sequence[Any]) -> Listed:
        """The same samples with more columns."""
        return Listed(self.paths, self.sizes, self.versions, **self._columns, **columns)

    def at(self, indices: Sequence[int]) -> Listed:
        """Some of the samples, in the order of `indices`."""
        columns = {name: taken(column, indices) for name, column in self._columns.items()}
        paths, sizes = taken(self.paths, indices), taken(self.sizes, indices)
        return Listed(paths, sizes, taken(self.versions, indices), **columns)

    def files(self) -> list[tuple[str, int, str]]:
        """Path, bytes and version of each."""
        return list(zip(self.paths, self.sizes, self.versions, strict=True))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[SampleRef]:
        names = list(self._columns)
        if not names:
            return map(SampleRef, self.paths, self.sizes, self.versions)
        rows = zip(*self._columns.values(), strict=True)
        own = zip(self.paths, self.sizes, self.versions, strict=True)
        return (
            SampleRef(*each, **dict(zip(names, row, strict=True)))
            for each, row in zip(own, rows, strict=True)
        )

    @overload
    def __getitem__(self, index: int) -> SampleRef: ...

    @overload
    def __getitem__(self, index: slice) -> Listed: ...

    def __getitem__(self, index: int | slice) -> SampleRef | Listed:
        pick = itemgetter(index)
        columns = {name: pick(column) for name, column in self._columns.items()}
        if isinstance(index, slice):
            return Listed(pick(self.paths), pick(self.sizes), pick(self.versions), **columns)
        return SampleRef(self.paths[index], self.sizes[index], self.versions[index], **columns)


def numbers(values: Iterable[int]) -> array[int]:
    """A column of whole numbers, 8 bytes each."""
    return array(_INT64, values)


def taken(column: Sequence[T], indices: Sequence[int]) -> Sequence[T]:
    """Items of a column at some places; a column of numbers, or of times, stays one."""
    if isinstance(column, array):
        picked = np.asarray(column)[np.asarray(indices, dtype=np.int64)]
        return array(column.typecode, picked.tobytes())  # type: ignore[return-value]
    if isinstance(column, Times):
        return Times(taken(column.times_ns, indices))  # type: ignore[arg-type, return-value]
    return tuple(map(column.__getitem__, indices))


def by_path(paths: Sequence[str], sizes: Sequence[int], versions: Sequence[str]) -> Listed:
    """The samples of these columns in the order of their paths."""
    if not all(map(lt, paths, islice(paths, 1, None))):
        order = sorted(range(len(paths)), key=paths.__getitem__)
        paths, sizes = taken(paths, order), taken(sizes, order)
        versions = taken(versions, order)
    return Listed(paths, sizes, versions)


def columns_of(files: Iterable[StoredFile]) -> Listed:
    """Files as samples of one file each, by path."""
    columns = list(zip(*files, strict=True)) or [(), (), ()]
    return by_path(*columns)
