"""Samples of a source: references, and columns of them, as millions need no object each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import lt
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from headrace.fields.field_kind import Value
from headrace.objects.protocol import StoredFile
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site, StoreOptions

T = TypeVar("T")

Values: TypeAlias = Mapping[str, Value]
"""The values of one sample by the name of the field; every field of the source is there."""

READ_BYTES = 2**26
"""Bytes of rows that are read from containers at once, about; large shards hold neighbours of this
many bytes in random order, so that each is read once."""


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


@dataclass(frozen=True, slots=True)
class SourceField:
    """One field of the samples of a source."""

    name: str
    """Name of the field; a label that is a number is called `label`."""
    kind: str
    """Name of a kind of field."""
    dtype: str = ""
    """numpy name of the dtype of a `value`, such as `float32`; empty for other kinds."""
    encoding: str = ""
    """Encoding where the source knows it for all samples, such as `json` for text; else empty."""


Fields: TypeAlias = tuple[SourceField, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A sample that cannot be packed; it goes to quarantine."""

    path: str
    reason: str


Content: TypeAlias = "bytes | Unreadable"
"""Bytes of a whole file, or why there are none."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the site allows a source; may be pickled."""

    s3: StoreOptions | None = None
    """How S3 is reached; null for the defaults."""
    recipe: Recipe | None = None
    """The recipe, whose `code` folders may hold `dataset.reader`."""
    site: Site | None = None
    """The site, which allows code; null allows none."""

    @classmethod
    def of(cls, recipe: Recipe, site: Site) -> Access:
        """What a site allows a recipe."""
        return cls(s3=site.s3, recipe=recipe, site=site)


NOTHING = Access()
"""Local folders and no code."""


class Source(Protocol):
    """Raw samples of one form.

    `list_samples` is called once, where the plan is made. Workers open the source again with the
    fields that the listing found (`headrace.packing.sources.open.open_source`), and call `read`.
    """

    @property
    def fields(self) -> Fields:
        """Fields of a sample, in order; known after `list_samples`, or from the opening."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the source's own order, known after the listing; empty: order by name."""

    @property
    def sequential(self) -> bool:
        """Whether shards should hold neighbours, as these are much cheaper to read together.

        So are rows of Parquet, Arrow and compressed HDF5 files.
        """

    def list_samples(self, check: Callable[[], None] | None = None) -> Sequence[SampleRef]:
        """All samples, sorted by path, no path twice.

        Args:
            check: Called often; may raise to stop.

        Raises:
            RecipeError: The recipe does not fit what lies there.
            DataError: Samples, labels or names are wrong.
        """

    def read(self, refs: Sequence[SampleRef]) -> Iterator[Values | Unreadable]:
        """Values of a batch of samples, in the order of `refs`; their bytes are read once.

        Raises:
            DataError: A source changed or vanished since it was listed.
            StoreError: The storage failed.
        """


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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Times(self.times_ns[index])
        return str(self.times_ns[index])


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
