"""Labels of the samples: from class folders, from an index file, or none."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import DataError, RecipeError
from headrace.packing.sources import SourceFile
from headrace.recipe.dataset import DatasetSpec

_SUFFIXES = (".csv", ".jsonl")
_COLUMNS = ("path", "label")
_NUM_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classes, and the class of every sample."""

    classes: tuple[str, ...]
    """Class names: by number when all are whole numbers, else by alphabet; empty for none."""
    indices: tuple[int, ...]
    """Class index of every file, in the files' order; empty for none."""


def label_samples(spec: DatasetSpec, folder: Path, files: Sequence[SourceFile]) -> Labels:
    """Label every file as the recipe says.

    Raises:
        RecipeError: The recipe does not fit what lies in the folder.
        DataError: Files and labels do not match one to one.
    """
    if spec.labels == "none":
        return Labels(classes=(), indices=())
    if spec.labels == "folders" or (spec.labels == "auto" and spec.index is None):
        return labels_of([folder_label(str(folder), file.path) for file in files])
    index = _index_file(folder, spec.index or "")
    return labels_of(_match(index, read_index(index), files))


def read_index(path: Path) -> dict[str, str]:
    """Labels by path from a CSV or JSONL file.

    Raises:
        RecipeError: A column is missing.
        DataError: A row cannot be used, or a path occurs twice.
    """
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _jsonl_rows(path)
    labels: dict[str, str] = {}
    seen_in: dict[str, int] = {}
    for line, sample, label in rows:
        key = _relative(path, line, sample)
        if not label:
            raise DataError(f"{path}, line {line}: the label of '{key}' is empty")
        if key in labels:
            raise DataError(
                f"{path} labels '{key}' twice: '{labels[key]}' in line {seen_in[key]}, "
                f"'{label}' in line {line}",
                "Keep one of the lines.",
            )
        labels[key] = label
        seen_in[key] = line
    return labels


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
    return Labels(classes=ordered, indices=tuple(index_of[name] for name in names))


def by_folders(spec: DatasetSpec) -> bool:
    """Whether the name of a sample's first folder is its label."""
    if spec.labels == "auto":
        return spec.index is None and spec.label_field is None
    return spec.labels == "folders"


def folder_label(source: str, path: str) -> str:
    """Class name out of the path of a sample.

    Raises:
        RecipeError: It lies in no folder.
    """
    first, slash, _ = path.partition("/")
    if slash:
        return first
    raise RecipeError(
        f"{source}/{path} lies in no class folder, but labels come from folders",
        f"Move it to {source}/<class>/, or set dataset.labels to 'index' or 'none'.",
    )


def _index_file(folder: Path, name: str) -> Path:
    path = folder / name
    if path.suffix.lower() not in _SUFFIXES:
        raise RecipeError(f"dataset.index is '{name}'", "Valid: a .csv or a .jsonl file.")
    if not path.is_file():
        there = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
        raise RecipeError(
            f"The index file {path} does not exist",
            f"Index files in {folder}: {', '.join(there) or 'none'}.",
        )
    for suffix in _SUFFIXES:
        other = path.with_suffix(suffix)
        if other != path and other.is_file():
            raise RecipeError(
                f"There are two label files, {path.name} and {other.name}, in {path.parent}",
                "Remove or rename one, so that it is clear which labels count.",
            )
    return path


def _csv_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [column.strip() for column in next(reader, [])]
            _check_columns(path, header)
            places = [header.index(column) for column in _COLUMNS]
            for row in reader:
                if not any(row):
                    continue
                if len(row) <= max(places):
                    raise DataError(f"{path}, line {reader.line_num}: too few columns: {row}")
                yield reader.line_num, row[places[0]].strip(), row[places[1]].strip()
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no CSV file in UTF-8: {error}") from error


def _jsonl_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text.decode("utf-8-sig"))
            except ValueError as error:
                raise DataError(f"{path}, line {line}: no JSON in UTF-8: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {line}: no JSON object, but {text[:80]!r}")
            _check_columns(path, row)
            yield line, str(row["path"]), _json_label(path, line, row["label"])


def _json_label(path: Path, line: int, label: object) -> str:
    if isinstance(label, str):
        return label.strip()
    if isinstance(label, int):
        return str(label)
    raise DataError(f"{path}, line {line}: the label {label!r} is neither text nor a whole number")


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    found = list(columns)
    missing = [column for column in _COLUMNS if column not in found]
    if missing:
        raise RecipeError(
            f"{path} has no column {' and no column '.join(repr(name) for name in missing)}",
            f"Columns found: {', '.join(found) or 'none'}. Needed, separated by commas: "
            f"{', '.join(_COLUMNS)}.",
        )


def _relative(index: Path, line: int, sample: str) -> str:
    path = PurePosixPath(sample)
    if not sample or path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{index}, line {line}: the path '{sample}' is not below the source folder",
            "Write paths relative to dataset.source, as in images/0001.png.",
        )
    return str(path)


def _match(index: Path, labels: dict[str, str], files: Sequence[SourceFile]) -> list[str]:
    paths = {file.path for file in files}
    without_label = sorted(paths - labels.keys())
    if without_label:
        raise DataError(
            f"{len(without_label):,} of {len(paths):,} files have no label in {index}: "
            f"{shown(without_label)}",
            "Add them to the index, or narrow dataset.include.",
        )
    without_file = sorted(labels.keys() - paths)
    if without_file:
        raise DataError(
            f"{len(without_file):,} of {len(labels):,} labels in {index} have no file: "
            f"{shown(without_file)}",
            "Remove the lines, or check that the paths are relative to dataset.source and match "
            "dataset.include.",
        )
    return [labels[file.path] for file in files]


def shown(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    more = ", …" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more
