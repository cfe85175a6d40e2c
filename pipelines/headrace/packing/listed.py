"""The samples of a source as columns, and their labels: millions of them need no object each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import lt
from typing import Any, TypeVar, overload

import numpy as np

from headrace.errors import RecipeError
from headrace.objects.protocol import StoredFile
from headrace.packing.samples import SampleRef

T = TypeVar("T")

_NONE = (None, None, None, ())  # what a sample has without label, group, split and place
_NUM_SHOWN = 5


class Times(Sequence[str]):
    """Versions that are times; each is made a text when one is asked for."""

    def __init__(self, times_ns: array[int]) -> None:
        self.times_ns = times_ns

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


@dataclass(frozen=True, eq=False)
class Listed(Sequence[SampleRef]):
    """References of samples, made when one is asked for; what they are made of lies in columns.

    Columns of labels, groups, splits and places are empty where no sample has one.
    """

    paths: Sequence[str]
    """Name of each."""
    sizes: Sequence[int]
    """Bytes of each."""
    versions: Sequence[str]
    """Version of each."""
    labels: Sequence[str | None] = ()
    """Class name of each."""
    groups: Sequence[str | None] = ()
    """Group of each."""
    splits: Sequence[str | None] = ()
    """Split of each, where the source gives it."""
    places: Sequence[tuple[int, ...]] = ()
    """Place of each in its container."""

    @classmethod
    def of(cls, refs: Sequence[SampleRef]) -> Listed:
        """The columns of references."""
        if isinstance(refs, Listed):
            return refs
        if not refs:
            return cls((), (), ())
        paths, sizes, versions, *rest = zip(*refs, strict=True)
        known = (
            column if any(value != none for value in set(column)) else ()
            for column, none in zip(rest, _NONE, strict=True)
        )
        return cls(paths, sizes, versions, *known)

    def at(self, indices: Sequence[int]) -> Listed:
        """Some of the samples, in the order of `indices`."""
        return Listed(*(taken(each, indices) if len(each) else () for each in self._columns()))

    def files(self) -> list[StoredFile]:
        """The samples as files."""
        return list(map(StoredFile, self.paths, self.sizes, self.versions))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[SampleRef]:
        own, others = self._columns()[:3], self._columns()[3:]
        rest = (
            each if len(each) else repeat(none) for each, none in zip(others, _NONE, strict=True)
        )
        return map(SampleRef, *own, *rest)

    @overload
    def __getitem__(self, index: int) -> SampleRef: ...

    @overload
    def __getitem__(self, index: slice) -> Listed: ...

    def __getitem__(self, index: int | slice) -> SampleRef | Listed:
        own, others = self._columns()[:3], self._columns()[3:]
        if isinstance(index, slice):
            return Listed(*(each[index] for each in self._columns()))
        rest = (
            each[index] if len(each) else none for each, none in zip(others, _NONE, strict=True)
        )
        return SampleRef(*(each[index] for each in own), *rest)

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return (
            *(self.paths, self.sizes, self.versions),
            *(self.labels, self.groups, self.splits, self.places),
        )


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classes, and the class of every sample."""

    classes: tuple[str, ...]
    """Class names: by number when all are whole numbers, else by alphabet; empty for none."""
    indices: Sequence[int]
    """Class index of every file, in the files' order; empty for none."""


def labels_of(names: Sequence[str], classes: Sequence[str] = ()) -> Labels:
    """Labels out of the class name of every sample.

    Args:
        names: Class names, one a sample.
        classes: All classes in the source's own order; empty to order them here.
    """
    distinct = set(names)
    as_numbers = all(name.isdecimal() and name.isascii() for name in distinct)
    key = (lambda name: (int(name), name)) if as_numbers else None
    ordered = tuple(classes) or tuple(sorted(distinct, key=key))
    index_of = {name: index for index, name in enumerate(ordered)}
    return Labels(classes=ordered, indices=numbers(map(index_of.__getitem__, names)))


def folder_labels(source: str, paths: Iterable[str]) -> list[str]:
    """The first folder of each path.

    Raises:
        RecipeError: One lies in no folder.
    """
    labels = []
    for path in paths:
        first, slash, _ = path.partition("/")
        if not slash:
            raise RecipeError(
                f"{source}/{path} lies in no class folder, but labels come from folders",
                f"Move it to {source}/<class>/, or set dataset.labels to 'index' or 'none'.",
            )
        labels.append(first)
    return labels


def shown(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    more = ", …" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def numbers(values: Iterable[int]) -> array[int]:
    """A column of whole numbers, 8 bytes each."""
    return array("q", values)


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
    found = Listed(paths, sizes, versions)
    if all(map(lt, paths, islice(paths, 1, None))):
        return found
    return found.at(sorted(range(len(paths)), key=paths.__getitem__))


def columns_of(files: Iterable[StoredFile]) -> Listed:
    """Files as samples of one file each, by path."""
    columns = list(zip(*files, strict=True)) or [(), (), ()]
    return by_path(*columns)
