"""Sources of raw samples: what one is asked, and what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.fields.field_kind import Value
from headrace.files.manifest import ColumnNote
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sample_table import SampleTable
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site, StoreOptions

Values: TypeAlias = Mapping[str, Value]
"""The values of one sample by the name of the field; every field of the source is there."""

READ_BYTES = 2**26
"""Bytes of rows that are read from containers at once, about; large shards hold neighbours of this
many bytes in random order, so that each is read once."""


def bytes_of(value: object) -> int:
    """Return about how many bytes of memory a value takes."""
    return len(value) if isinstance(value, bytes | str) else int(getattr(value, "nbytes", 8))


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
    mixed: Literal["ragged"] | None = None
    """How arrays of other shapes are kept if the recipe does not say; None: as the kind says."""
    column: str = field(default="", compare=False)
    """Its column in the containers of rows."""
    type: str = field(default="", compare=False)
    """Type of that column, as the container calls it."""


Fields: TypeAlias = tuple[SourceField, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A sample that cannot be packed; it goes to quarantine."""

    path: str
    reason: str


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


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a source is opened with."""

    spec: DatasetSpec
    place: SourceStore
    """Where its files lie."""
    fields: Fields = ()
    """The fields that the listing found, on workers."""
    access: Access = NOTHING


class Source(ABC):
    """Raw samples of one form.

    `list_samples` is called once, where the plan is made. Workers open the source again with the
    fields that the listing found (`headrace.packing.sources.open.open_source`), and call `read`.
    """

    fields: Fields
    """Fields of a sample, in order; known after `list_samples`, or from the opening."""
    classes: tuple[str, ...] = ()
    """Class names in the source's own order, known after the listing; empty: order by name."""
    notes: tuple[str | ColumnNote, ...] = ()
    """How the samples were found, for people; known after the listing."""
    sequential = False
    """Whether shards should hold neighbours, as these are much cheaper to read together.

    So are rows of Parquet, Arrow and compressed HDF5 files."""
    quarantined: Sequence[Unreadable] = ()
    """Samples that the listing leaves out, as they have no class, group or split."""

    def __init__(self, opening: Opening) -> None:
        self.check_spec(opening.spec)
        self._spec, self._place, self.fields = opening.spec, opening.place, opening.fields
        self._access = opening.access

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        """Raise a RecipeError for what this form never takes, whatever lies there."""
        del spec

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        """Return the files that hold all samples: their sizes and versions show changes.

        Empty where samples are files of their own, or no files alone decide what they are.
        """
        del check
        return ()

    @abstractmethod
    def list_samples(self, check: Check | None = None) -> SampleTable:
        """Return all samples, sorted by path, no path twice; `check` may raise to stop.

        Raises:
            RecipeError: The recipe does not fit what lies there.
            DataError: Samples, labels or names are wrong.
        """

    @abstractmethod
    def read(self, refs: SampleTable) -> Iterator[Values | Unreadable]:
        """Yield values of a batch of samples, in the order of `refs`; their bytes are read once.

        Raises:
            DataError: A source changed or vanished since it was listed.
            StoreError: The storage failed.
        """
