"""Annotations of images in files of their own: what these say becomes the columns of an index."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from headrace.errors import DataError, RecipeError, UnreadableError
from headrace.files.manifest import ColumnNote
from headrace.objects.protocol import StoredFile
from headrace.packing.sample_table import CARRIED, SampleTable, files_of, shown
from headrace.packing.samples import Fields, Opening
from headrace.packing.sources.files import is_text_sample, suffix_of
from headrace.packing.sources.folder import FolderSource
from headrace.packing.sources.folder_layout import split_named
from headrace.packing.sources.index import Index
from headrace.packing.sources.made import MadeSource
from headrace.packing.sources.parts import patterns_of
from headrace.packing.sources.source_store import Content, SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.globs import matcher

_NUMBERS = (int, float)

Annotated: TypeAlias = tuple[str, dict[str, Any]]
"""Name of an image, perhaps behind folders or without its ending, and what a file says of it: texts
and numbers, and lists with an entry for each object."""


class AnnotatedSource(FolderSource):
    """Images, and the files that annotate them."""

    form: ClassVar[str]
    files: ClassVar[str]
    """Pattern of these files; `dataset.index` replaces it."""
    others: ClassVar[Collection[str]] = ()
    """Names of files of this pattern that annotate nothing."""
    without: ClassVar[Mapping[str, Any]] = {}
    """Values of images that no file names; empty if each must be named."""

    @cached_property
    def left_out(self) -> set[str]:
        """Keys that are not read, of all files that were."""
        return set()

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        patterns_of(spec.fields)

    @abstractmethod
    def annotated(self, path: str, content: bytes) -> Iterator[Annotated]:
        """Yield what a file says; raise ValueError, LookupError or TypeError if it is malformed."""

    @abstractmethod
    def is_inside(self, box: Sequence[float], row: Mapping[str, Any]) -> bool:
        """Whether a box has an area, and lies in its image."""

    def _index_of(self, opening: Opening) -> Index:
        return _AnnotationIndex(self, opening)


class _AnnotationIndex(Index):
    """What the files say, by image."""

    _rows: _Annotations

    def __init__(self, source: AnnotatedSource, opening: Opening) -> None:
        self._source_of, self._pattern = source, opening.spec.index or source.files
        self._images: Sequence[str] = ()
        self._remarks: tuple[str, ...] = ()
        super().__init__(opening)

    def _found(self, opening: Opening) -> tuple[SourceStore, StoredFile]:
        return opening.place, StoredFile(_Annotations.path, 0, "")

    @cached_property
    def _files(self) -> SampleTable:
        matches = matcher([self._pattern])
        place = SourceStore(self._place.store)  # of counts of its own
        found = place.listed(lambda path: matches(path) and self._is_one(path))
        if not found:
            raise RecipeError(
                f"No file in {self._place.name} matches '{self._pattern}', to annotate its images",
                "Name the pattern of the annotations in dataset.index, or correct dataset.format.",
            )
        return found

    def _is_one(self, path: str) -> bool:
        named = path.rpartition("/")[2].lower() in self._source_of.others
        return not named and (suffix_of(path) != ".txt" or is_text_sample(path))

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._files.iter_paths())

    @property
    def notes(self) -> tuple[str | ColumnNote, ...]:
        return (*self._remarks, *super().notes)

    def matched(self, listed: SampleTable) -> SampleTable:
        self._images = list(listed.iter_paths())
        self._file = self._rows.made[1]
        return super().matched(listed)

    def _source(self, fields: Fields) -> _Annotations:
        rows = _Annotations(Opening(spec=self._spec, place=self._place, fields=fields))
        rows.asked = replace(rows.asked, is_index=True, every=self._every)
        rows.index = self
        return rows

    def _carried(self, rows: Any) -> Mapping[str, Any]:
        from pyarrow import parquet

        table = parquet.read_table(self._rows.made[0])
        return {CARRIED + f.name: table.column(f.column).take(rows) for f in self._rows.fields}

    def table(self) -> Any:
        """Return what the files say as an Arrow table, and note what is odd."""
        rows, of = self._by_image(), self._source_of
        odd = [
            path for path, row in rows.items()
            if not all(of.is_inside(box, row) for box in row.get("boxes", ()))
        ]  # fmt: skip
        alone = [path for path in self._images if path not in rows] if of.without else []
        rows |= dict.fromkeys(alone, of.without)
        notes = {
            "images with boxes without an area, or that leave the image": odd,
            "images that no annotation names, so that they have no box": alone,
        }
        self._remarks = tuple(f"{len(v):,} {what}: {shown(v)}" for what, v in notes.items() if v)
        if of.left_out:
            self._remarks += (f"keys of annotations left out: {', '.join(sorted(of.left_out))}",)
        names = dict.fromkeys(name for row in rows.values() for name in row)
        columns = [_column(name, [row.get(name) for row in rows.values()]) for name in names]
        schema = pa.schema([("path", pa.string()), *(field for field, _ in columns)])
        arrays = [pa.array(list(rows), pa.string()), *(cells for _, cells in columns)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _by_image(self) -> dict[str, Mapping[str, Any]]:
        """Return what all files say, by the path of the image."""
        rows: dict[str, dict[str, Any]] = {}
        find, files = _Finder(self._images), files_of(self._files)
        for file, content in zip(files, self._place.read(files), strict=True):
            try:
                self._add(rows, find, file.path, content)
            except (
                UnreadableError, ValueError, LookupError, TypeError, AttributeError
            ) as error:  # fmt: skip
                raise DataError(
                    f"{self._place.name}/{file.path} cannot be read as annotations of format "
                    f"'{self._source_of.form}': {error}",
                    "Correct or remove it, or choose files by a pattern in dataset.index.",
                ) from error
        return dict(rows)

    def _add(
        self, rows: dict[str, dict[str, Any]], find: _Finder, file: str, content: Content
    ) -> None:
        if isinstance(content, UnreadableError):
            raise content
        for image, values in self._source_of.annotated(file, content):
            _check(values)
            path = find(file, image)
            row = rows.setdefault(path, {})
            for key, value in values.items():
                if key in row and (isinstance(value, list) or row[key] != value):
                    raise ValueError(f"'{key}' of '{path}' is there twice")
                row[key] = value


class _Annotations(MadeSource):
    form = path = "annotations"
    index: _AnnotationIndex

    def tables(self) -> Iterator[Any]:
        yield self.index.table()


class _Finder:
    def __init__(self, images: Sequence[str]) -> None:
        self._named: dict[str, list[str]] = {}
        for path in images:
            name = path.rpartition("/")[2]
            for each in {name, name.rpartition(".")[0]}:
                self._named.setdefault(each, []).append(path)

    def __call__(self, file: str, image: str) -> str:
        """Return the image that a file names, or the name if no image is so called.

        Of several it is the one that shares most names of folders with the file, never one of
        another split.

        Raises:
            ValueError: Several share as many.
        """
        image, (words, splits) = image.removeprefix("./"), _words(file)
        scores: dict[int, list[str]] = {}
        for path in self._named.get(image.rpartition("/")[2], []):
            folders, of = _words(path.rpartition("/")[0])
            is_it = any(
                f"/{each}".endswith(f"/{image}") for each in (path, path.rpartition(".")[0])
            )
            if is_it and (not splits or not of or splits & of):
                scores.setdefault(len(words & folders), []).append(path)
        first, *more = scores[max(scores)] if scores else [image]
        if more:
            raise ValueError(f"the image '{image}' is '{first}' or '{more[0]}'")
        return first


@cache
def _words(path: str) -> tuple[set[str], set[str]]:
    words = set(re.split("[/._-]", path))
    return words, {*map(split_named, words)} - {""}


def _check(values: Mapping[str, Any]) -> None:
    """Refuse boxes that are not four numbers, and labels that are no whole numbers of 64 bits."""
    for box in values.get("boxes", ()):
        if len(box) != 4 or not all(type(x) in _NUMBERS and math.isfinite(x) for x in box):
            raise ValueError(f"the box {box!r} is not four numbers")
    for label in values.get("labels", ()):
        if type(label) is not int or not -(2**63) <= label < 2**63:
            raise ValueError(f"the label {label!r} is not a whole number of 64 bits")


def _column(name: str, cells: Sequence[Any]) -> tuple[Any, Any]:
    """Return an Arrow field and its cells: lists of numbers are arrays, others texts of JSON."""
    kind = pa.list_(pa.list_(pa.float64(), 4)) if name == "boxes" else None
    lists = [cell for cell in cells if isinstance(cell, list)]
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        if kind or all(type(each) in _NUMBERS for cell in lists for each in cell):
            found = pa.array(cells, kind)
            return pa.field(name, found.type, metadata={"ragged": ""} if lists else None), found
    texts = [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells]
    return pa.field(name, pa.string(), metadata={"json": ""}), pa.array(texts, pa.string())
