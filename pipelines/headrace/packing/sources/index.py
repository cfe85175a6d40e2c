"""Index files of a source: one row a sample, with its label, group, split and further values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import unquote

import xxhash
from pyarrow import compute as pc

from headrace.errors import DataError, RecipeError
from headrace.files.manifest import ColumnNote
from headrace.objects.protocol import StoredFile
from headrace.objects.store import is_remote
from headrace.packing.sample_table import CARRIED, ROLES, SampleTable, in_order, shown, strings
from headrace.packing.samples import Fields, Opening, Unreadable, Values
from headrace.packing.sources.arrow import ParquetSource
from headrace.packing.sources.arrow_columns import column_of
from headrace.packing.sources.files import FORMS, suffix_of
from headrace.packing.sources.lines import CsvSource, JsonLinesSource
from headrace.packing.sources.listing import LABEL, PATHS, table_of_rows
from headrace.packing.sources.open import open_place
from headrace.packing.sources.rows import RowSource, samples_of
from headrace.packing.sources.source_store import SourceStore, utf8_names
from headrace.recipe.dataset import DatasetSpec

_FORMS: tuple[type[RowSource], ...] = (CsvSource, JsonLinesSource, ParquetSource)
SUFFIXES = tuple(suffix for form in _FORMS for suffix in FORMS[form.form].suffixes)
"""Endings of index files."""


class Index:
    """The index file that a recipe names: a table whose rows name the files of samples."""

    def __init__(self, opening: Opening, *, every: bool = True) -> None:
        spec = opening.spec
        named = {name: column for name, column in spec.fields.items() if "*" not in column}
        self._place = opening.place
        self._home, self._file = self._found(opening)
        self._every = every and not named
        has_values = spec.labels != "none" and spec.label_kind == "value"
        needs_label = spec.labels in ("index", "field") or has_values
        self._spec = spec.model_copy(
            update={
                "index": None,
                "include": DatasetSpec.model_fields["include"].default,
                "fields": named,
                "labels": "field" if needs_label else spec.labels,
                "label_field": (spec.label_field or LABEL) if needs_label else spec.label_field,
            }
        )
        self.name = f"{self._home.name}/{self._file.path}"
        self.quarantined: Sequence[Unreadable] = ()
        self._rows = self._source(())

    @property
    def paths(self) -> frozenset[str]:
        """The files that hold the rows, below the source; none if they lie elsewhere."""
        return frozenset([self._file.path] if self._home is self._place else [])

    @property
    def fields(self) -> Fields:
        """Fields that the rows hold, numbers last; known after `matched`."""
        return tuple(sorted(self._rows.fields, key=lambda field: field.kind == "value"))

    @property
    def notes(self) -> tuple[str | ColumnNote, ...]:
        """What people should look at in columns; known after `matched`."""
        return self._rows.notes

    def matched(self, listed: SampleTable) -> SampleTable:
        """The samples with what their rows say; rows and files match one to one."""
        rows, hashed = self._read()
        self._check_match(listed.paths, rows.paths, rows.has("label"))
        lacking = strings([each.path for each in self.quarantined])
        listed = SampleTable(listed.table.filter(_are_none_of(listed.paths, lacking)))
        carried = [name for name in rows.table.column_names if name.startswith(CARRIED)]
        matched = SampleTable.of(
            path=rows.paths,
            bytes=listed.column("bytes"),
            version=listed.column("version").cast("large_string"),  # the pack key is of texts
            places=[*listed.places, *rows.places],
            **{name: rows.column(name) for name in (*ROLES, *carried)},
        )
        return replace(matched, index_hash=hashed)

    def values(self, fields: Fields, refs: SampleTable) -> Iterator[Values | Unreadable]:
        """Values of the rows of samples."""
        source = self._rows if self._rows.fields else self._source(fields)
        if refs.has(CARRIED + fields[0].name):
            cells = {
                each.name: column_of(each, refs.column(CARRIED + each.name)) for each in fields
            }
            columns = {name: source.filled(name, column) for name, column in cells.items()}
            return samples_of(refs.iter_paths(), columns)
        rows = table_of_rows(self._file, 0, {0: len(refs)}, {})
        numbers = dict(zip(("place_0", "place_1"), refs.places[-2:], strict=True))
        found = source.read(SampleTable(rows).with_columns(**numbers))
        return (
            Unreadable(path, values.reason) if isinstance(values, Unreadable) else values
            for path, values in zip(refs.iter_paths(), found, strict=True)
        )

    def _source(self, fields: Fields) -> RowSource:
        suffix = suffix_of(self._file.path)
        form = next(form for form in _FORMS if suffix in FORMS[form.form].suffixes)
        place = SourceStore(self._home.store, self._file.path)
        source = form(Opening(spec=self._spec, place=place, fields=fields))
        source.asked = replace(source.asked, is_index=True, every=self._every)
        return source

    def _found(self, opening: Opening) -> tuple[SourceStore, StoredFile]:
        """Return the index file, and where it lies."""
        name, place = opening.spec.index or "", opening.place
        if is_remote(name) or name.startswith(("/", "~")):  # its whole path
            folder, _, name = name.rpartition("/")
            place = open_place(folder or "/", opening.access)
        path = PurePosixPath(name)
        found = place.stat(str(path))
        if found is None:
            near = (PurePosixPath(other) for other in place.names())
            beside = [str(other) for other in near if other.parent == path.parent]
            there = ", ".join(sorted(other for other in beside if suffix_of(other) in SUFFIXES))
            raise RecipeError(
                f"The index file {place.name}/{name} does not exist",
                f"Index files in {place.name}: {there or 'none'}.",
            )
        return place, found

    def _read(self) -> tuple[SampleTable, str]:
        """What the rows say, by path, and one hash of the values of all of them."""
        rows = self._rows.list_samples()
        table: Any
        with self._rows.open_rows(self._file.path, self._file.version) as table:
            if table.bad:
                raise DataError(
                    f"{self.name}, {next(iter(table.bad.values()))}", "Correct or remove the row."
                )
            paths = [
                self._path(text, table, row)
                for row, text in enumerate(table.texts(self._column(table)).to_pylist())
            ]
            hashed = self._hashed(paths, table)
            with utf8_names(self.name):
                in_rows = strings(paths).take(rows.column("row"))
            carried = self._carried(rows.column("row"))
            listed, twice = in_order(rows.with_columns(path=in_rows, row=None, **carried))
            if twice >= 0:
                raise self._twice(paths, listed[twice].path, table)
        left_out = self._rows.left_out.items()
        self.quarantined = [Unreadable(paths[row], reason) for row, reason in left_out]
        return listed, hashed

    def _carried(self, rows: Any) -> Mapping[str, Any]:
        """Return values of rows that are kept in the plan, as columns of samples."""
        del rows
        return {}

    def _hashed(self, paths: Sequence[str], table: Any) -> str:
        """One hash of all values, in whatever order their rows are; empty for no columns."""
        columns = {each.name: each.column for each in self._rows.fields}
        if not columns:
            return ""
        named = {*self._spec.fields, LABEL}  # these come first
        columns = dict(sorted(columns.items(), key=lambda item: item[0] not in named))
        state = 0
        cells = table.as_written(list(columns.values()))
        for path, row in zip(paths, cells, strict=True):
            text = repr((path, list(zip(columns, row, strict=True))))
            state ^= xxhash.xxh3_128_intdigest(text.encode(errors="surrogatepass"))
        return f"{state:032x}"

    def _path(self, text: str | None, table: Any, row: int) -> str:
        text = (text or "").strip()
        path, folder = PurePosixPath(text), self._place.folder
        if folder is not None and path.is_relative_to(folder):
            text = str(path := path.relative_to(folder))
        elif self._column(table) == PATHS[1]:  # relative to the index
            path = PurePosixPath("".join(self.paths)).parent / text
        is_outside = PureWindowsPath(text).is_absolute() or path.is_absolute()
        if not text or is_outside or ".." in path.parts:
            raise DataError(
                f"{self.name}, {table.place(row)}: the path '{text}' is not below the "
                "source folder",
                "Write paths relative to dataset.source, as in images/0001.png.",
            )
        return str(path)

    def _column(self, table: Any) -> str:
        return self._rows.asked.path_column(table.types)

    def _twice(self, paths: Sequence[str], path: str, table: Any) -> DataError:
        rows = [row for row, each in enumerate(paths) if each == path]
        places = " and ".join(table.place(row) for row in rows[:2])
        label = self._rows.chosen.roles.get(LABEL)
        what = f"names '{path}' twice, in {places}"
        if label:
            cells = table.cells([label])[label].take(rows[:2]).to_pylist()
            what = f"{what}, with the labels {', '.join(map(repr, cells))}"
        return DataError(f"{self.name} {what}", "Keep one of the rows.")

    def _check_match(self, files: Any, paths: Any, has_labels: bool) -> None:
        noun = "label" if has_labels else "row"
        named = strings([*paths.to_pylist(), *(each.path for each in self.quarantined)])
        without_row = files.filter(_are_none_of(files, named)).to_pylist()
        without_file = named.filter(_are_none_of(named, files)).to_pylist()
        advice = _advice(without_file[0], files.to_pylist()) if without_file else ""
        if without_row:
            raise DataError(
                f"{len(without_row):,} of {len(files):,} files have no {noun} in "
                f"{self.name}: {shown(without_row)}",
                advice or "Add them to the index, or narrow dataset.include.",
            )
        if without_file:
            raise DataError(
                f"{len(without_file):,} of {len(named):,} {noun}s in {self.name} have "
                f"no file: {shown(without_file)}",
                advice
                or "Remove the rows, or check that the paths are relative to dataset.source and "
                "match dataset.include.",
            )


def _advice(path: str, files: Sequence[str]) -> str:
    """Return how a row should write the path of a file that lies there; empty if none is alike."""
    known = {*files}
    slashed, plain = path.replace("\\", "/"), unquote(path)
    if slashed in known:
        return f"Write paths with '/', not with '\\', as in '{slashed}'."
    if plain in known:
        return f"Write paths as the files are called, not in the form of URLs: '{plain}'."
    folded = f"/{path}".casefold()
    alike = [
        file for file in files
        if f"/{file}".casefold().endswith(folded) or folded.endswith(f"/{file}".casefold())
    ]  # fmt: skip
    return f"Write the path of '{path}' as it lies there, '{alike[0]}'." if alike else ""


def _are_none_of(texts: Any, others: Any) -> Any:
    return pc.invert(pc.is_in(texts, others))


def check_index(spec: DatasetSpec) -> None:
    """Refuse a name that no index file has, and columns without an index file."""
    if spec.index is not None:
        _check_name(spec.index)
        return
    columns = {key: getattr(spec, key) for key in ("label_field", "group_field", "split_field")}
    columns |= {f"fields.{name}": text for name, text in spec.fields.items() if "*" not in text}
    if spec.label_kind == "value" and spec.labels != "none":
        columns["label_kind"] = spec.label_kind
    for key, column in columns.items():
        if column is not None:
            raise RecipeError(
                f"dataset.{key} is '{column}', but the recipe names no index file with columns",
                "Name a CSV, JSONL or Parquet file below the source in dataset.index.",
            )


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.suffix.lower() not in SUFFIXES:
        raise RecipeError(
            f"dataset.index is '{name}'", f"Valid: a file that ends with {', '.join(SUFFIXES)}."
        )
    if ".." in path.parts:
        raise RecipeError(
            f"dataset.index is '{name}', which is not below the source folder",
            "Write its path below the source folder, or its whole path.",
        )
