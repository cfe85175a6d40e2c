"""Index files of a source: one row a sample, with its label, group, split and further values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError
from headrace.fields.field_kind import Value
from headrace.packing.listed import (
    AT_ONCE,
    Coded,
    Listed,
    PlacesInContainers,
    SampleRef,
    Texts,
    TextsBuilder,
    in_order,
    numbers,
    shown,
)
from headrace.packing.samples import Fields, SourceField
from headrace.packing.sources.files import rows_as_samples, suffix_of
from headrace.packing.sources.index_rows import (
    SUFFIXES,
    IndexColumns,
    IndexFile,
    Row,
    Where,
    as_value,
    open_index,
)
from headrace.packing.sources.source_store import SourceStore, check_names
from headrace.recipe.dataset import DatasetSpec

_LABEL = "label"


class _IndexRow(NamedTuple):
    path: str
    where: Where
    """Its line, and its place in the file."""
    label: str | None = None
    group: str | None = None
    split: str | None = None


class Index:
    """The index file that a recipe names."""

    def __init__(self, spec: DatasetSpec, place: SourceStore, *, every: bool = True) -> None:
        self._place = place
        self._file = _find(spec.index or "", place)
        label = spec.label_field or _LABEL
        named = {name: column for name, column in spec.fields.items() if "*" not in column}
        every = every and not named
        needed = {"path", spec.label_field, spec.group_field, spec.split_field}
        if spec.labels in ("index", "field"):
            needed.add(label)
        roles = {"group": spec.group_field or "group", "split": spec.split_field or "split"}
        if spec.labels != "none" and spec.label_kind == "class":
            roles["label"] = label
        elif spec.labels != "none":
            named[_LABEL] = label
            needed.add(label)
        self._roles = roles
        self._needed = {name for name in needed if name}
        self._in_each_row = {"path"} | (self._needed & {roles.get("label")})
        self._columns = IndexColumns(named, numbers=(_LABEL,), every=every)
        self._left_out = {"path", label, *roles.values()} - set(named.values())

    @property
    def path(self) -> str:
        """The file, below the source."""
        return self._file.path

    def matched(self, listed: Listed) -> Listed:
        """The samples with what their rows say."""
        rows = self._in_order()
        self._check_match(
            Texts.of(listed.paths), Texts.of(rows.paths), has_labels=bool(rows.labels)
        )
        _, *where = _columns(rows.places)
        return replace(
            rows,
            sizes=listed.sizes,
            versions=Texts.of(listed.versions),  # as texts, of which the pack key is made
            places=PlacesInContainers([*_columns(listed.places), *where]),
            values=self._columns.hashed,
        )

    @property
    def fields(self) -> Fields:
        """Fields that the rows hold; known after `matched`."""
        return self._columns.fields(self._file.name)

    def values(
        self, fields: Sequence[SourceField], refs: Sequence[SampleRef]
    ) -> list[dict[str, Value]]:
        """Values of the rows of samples."""
        if not fields:
            return [{} for _ in refs]
        num = self._file.num_where
        rows = self._file.again([ref.where[-num:] for ref in refs])
        named = self._columns.named
        names = [(field, named.get(field.name, field.name)) for field in fields]
        return [
            {field.name: as_value(field, row[column]) for field, column in names} for row in rows
        ]

    def _in_order(self) -> Listed:
        """What the rows tell, in the order of their paths; their places begin with their lines."""
        paths, places, told = TextsBuilder(), numbers(()), list[tuple[Coded[str | None], ...]]()
        rows = self._rows()
        while some := tuple(islice(rows, AT_ONCE)):
            names, some_places, *texts = zip(*some, strict=True)
            check_names(self._file.name, names)
            paths.extend(names)
            places.extend(chain.from_iterable(some_places))
            told.append(tuple(map(Coded.of, texts)))
        labels, groups, splits = map(_known, zip(*told, strict=True)) if told else ((), (), ())
        found = PlacesInContainers(np.asarray(places).reshape(-1, 1 + self._file.num_where).T)
        listed, twice = in_order(Listed(paths.texts(), (), (), labels, groups, splits, found))
        if twice >= 0:
            raise self._twice(listed, twice)
        if isinstance(listed.labels, Coded) and None in listed.labels.values:
            at = list(listed.labels).index(None)
            self._text(listed.paths[at], listed.places[at][0], "label", None)
        return listed

    def _rows(self) -> Iterator[_IndexRow]:
        first = True
        for line, row, where in self._file.rows():
            if first:
                self._start(row)
                first = False
            elif not self._in_each_row <= row.keys():
                self._check_columns(row)
            path = self._path(line, row)
            self._columns.add(path, line, row)
            texts = {
                role: self._text(path, line, role, row[column])
                for role, column in self._roles.items()
                if column in row
            }
            yield _IndexRow(path, (line, *where), **texts)
        if first:
            self._start(dict.fromkeys(self._file.columns))

    def _start(self, row: Row) -> None:
        self._check_columns(row)
        self._columns.start([name for name in row if name not in self._left_out])

    def _check_columns(self, row: Row) -> None:
        needed = [*sorted(self._needed), *self._columns.named.values()]
        missing = [name for name in dict.fromkeys(needed) if name not in row]
        if missing:
            order = ["path", *(name for name in needed if name != "path")]
            folder = "" if self._place.folder is None else f"{self._place.folder}/"
            rows = f" {rows_as_samples(folder + self.path)}" if "path" in missing else ""
            raise RecipeError(
                f"{self._file.name} has no column "
                f"{' and no column '.join(repr(name) for name in order if name in missing)}",
                f"Columns found: {', '.join(row) or 'none'}. Needed, separated by commas: "
                f"{', '.join(dict.fromkeys(order))}.{rows}",
            )

    def _path(self, line: int, row: Row) -> str:
        text = str(row["path"]).strip()
        path = PurePosixPath(text)
        if not text or path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{self._file.name}, line {line}: the path '{text}' is not below the source folder",
                "Write paths relative to dataset.source, as in images/0001.png.",
            )
        return str(path)

    def _text(self, path: str, line: int, role: str, value: object) -> str:
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int):
            return str(value)
        start = f"{self._file.name}, line {line}: the {role}"
        if value is None or isinstance(value, str):
            raise DataError(
                f"{start} of '{path}' is empty", "Fill it in, or remove the line and the file."
            )
        raise DataError(
            f"{start} {value!r} is neither text nor a whole number",
            "Numbers to predict need dataset.label_kind 'value'." if role == "label" else "",
        )

    def _twice(self, rows: Listed, at: int) -> DataError:
        path, lines = rows.paths[at], [rows.places[place][0] for place in (at, at + 1)]
        what = f"names '{path}' twice, in lines {lines[0]} and {lines[1]}"
        if rows.labels and rows.labels[at + 1] is not None:
            what = (
                f"labels '{path}' twice: '{rows.labels[at]}' in line {lines[0]}, "
                f"'{rows.labels[at + 1]}' in line {lines[1]}"
            )
        return DataError(f"{self._file.name} {what}", "Keep one of the lines.")

    def _check_match(self, files: Texts, paths: Texts, *, has_labels: bool) -> None:
        noun = "label" if has_labels else "row"
        if without_row := files.without(paths):
            raise DataError(
                f"{len(without_row):,} of {len(files):,} files have no {noun} in "
                f"{self._file.name}: {shown(without_row)}",
                "Add them to the index, or narrow dataset.include.",
            )
        if without_file := paths.without(files):
            raise DataError(
                f"{len(without_file):,} of {len(paths):,} {noun}s in {self._file.name} have "
                f"no file: {shown(without_file)}",
                "Remove the lines, or check that the paths are relative to dataset.source and "
                "match dataset.include.",
            )


def _columns(places: Sequence[tuple[int, ...]]) -> Sequence[NDArray[np.int64]]:
    return places.columns if isinstance(places, PlacesInContainers) else ()


def _known(parts: Sequence[Coded[str | None]]) -> Sequence[str | None]:
    column = Coded.together(parts)
    return column if any(value is not None for value in column.values) else ()


def index_of(spec: DatasetSpec, place: SourceStore, *, every: bool = True) -> Index | None:
    """The index file that a recipe names, or None.

    Raises:
        RecipeError: There is none, but the recipe names columns; or it cannot be used.
    """
    if spec.index is not None:
        return Index(spec, place, every=every)
    columns = {key: getattr(spec, key) for key in ("label_field", "group_field", "split_field")}
    columns |= {f"fields.{name}": text for name, text in spec.fields.items() if "*" not in text}
    if spec.label_kind == "value" and spec.labels != "none":
        columns["label_kind"] = spec.label_kind
    for key, column in columns.items():
        if column is not None:
            raise RecipeError(
                f"dataset.{key} is '{column}', but there is no index file with columns",
                "Name a CSV, JSONL or Parquet file below the source in dataset.index.",
            )
    return None


def _find(name: str, place: SourceStore) -> IndexFile:
    path = PurePosixPath(name)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise RecipeError(f"dataset.index is '{name}'", "Valid: a .csv, .jsonl or .parquet file.")
    if path.is_absolute() or ".." in path.parts:
        raise RecipeError(
            f"dataset.index is '{name}', which is not below the source folder",
            "Put the index file into the source folder, and name it relative to that.",
        )
    found = place.stat(str(path))
    if found is None:
        near = (PurePosixPath(other) for other in place.names())
        beside = [str(other) for other in near if other.parent == path.parent]
        there = ", ".join(sorted(other for other in beside if suffix_of(other) in SUFFIXES))
        raise RecipeError(
            f"The index file {place.name}/{name} does not exist",
            f"Index files in {place.name}: {there or 'none'}.",
        )
    return open_index(place, found)
