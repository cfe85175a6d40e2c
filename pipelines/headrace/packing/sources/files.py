"""What names of files say: which patterns they match, what they hold, which are containers."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from headrace.errors import DataError, RecipeError
from headrace.fields.field_kind import Kind, kind_of_suffix
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sample_table import files_of, shown
from headrace.packing.samples import SourceField
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.globs import matcher


@dataclass(frozen=True)
class Form:
    """A format of sources."""

    source: str
    """Its module and class."""
    taken: Literal["named", "content", "file", "folder", "table"]
    """When it is taken: where the recipe names it, by more than endings, where `dataset.source` is
    its file, where its files lie in a folder, or only where nothing else does, as they often tell
    of others."""
    suffixes: tuple[str, ...] = ()
    """Endings of files that hold many samples."""


FORMS: dict[str, Form] = {
    "files": Form("folder.FolderSource", "content"),
    "tar": Form("folder.TarSource", "folder", (".tar",)),  # compressed ones cannot be read
    "webdataset": Form("webdataset.WebDatasetSource", "content", (".tar",)),
    "parquet": Form("arrow.ParquetSource", "folder", (".parquet",)),
    "hdf5": Form("arrays.Hdf5Source", "folder", (".h5", ".hdf5")),
    "function": Form("function.FunctionSource", "named"),
    "huggingface": Form("arrow.HuggingFaceSource", "folder", (".arrow",)),
    "csv": Form("lines.CsvSource", "table", (".csv", ".tsv")),
    "jsonl": Form("lines.JsonLinesSource", "table", (".jsonl", ".ndjson")),
    "coco": Form("coco.CocoSource", "named"),
    "voc": Form("voc.VocSource", "named"),
    "yolo": Form("yolo.YoloSource", "named"),
    "npz": Form("arrays.NpzSource", "file", (".npz",)),
    "zarr": Form("arrays.ZarrSource", "content"),
    "sql": Form("sql.SqlSource", "file", (".db", ".sqlite", ".sqlite3", ".duckdb")),
}

_FIELD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DECOMPRESSED_BY = {
    ".gz": "gunzip", ".tgz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd",
    ".zip": "unzip", ".7z": "7z x", ".rar": "unrar x",
}  # fmt: skip
_ARCHIVES = (".tgz", ".zip", ".7z", ".rar")
_TABLES = (*FORMS["csv"].suffixes, *FORMS["jsonl"].suffixes)
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice)([-_.].*)?\.txt", re.IGNORECASE)


def suffix_of(path: str) -> str:
    """Ending of a name, in lower case with its dot; empty for none."""
    name = path.rpartition("/")[2]  # as pathlib, which takes ten times as long
    dot = name.rfind(".")
    return name[dot:].lower() if 0 < dot < len(name) - 1 else ""


def kind_of(path: str) -> Kind:
    """Kind of a file that holds one value; `BYTES` when the ending says nothing."""
    return kind_of_suffix(suffix_of(path))


def way_in(path: str) -> str:
    """What to do with a file of many samples that is not read as it is; empty for other files."""
    ending = suffix_of(path)
    tool, inner = _DECOMPRESSED_BY.get(ending), suffix_of(path[: -len(ending)])
    if tool and (ending in _ARCHIVES or inner in (".tar", *_TABLES)):
        command = shlex.join([*tool.split(), path])
        return f"Compressed files are not read; decompress it first: `{command}`."
    return rows_as_samples(path) if suffix_of(path) in _TABLES else ""


def rows_as_samples(path: str) -> str:
    """What to do with a table whose rows do not name the files of samples."""
    return (
        f"Where rows are samples themselves, set dataset.source to {path}, without dataset.index."
    )


def left_out(counts: Counter[str]) -> tuple[str, ...]:
    """Return a note on files that are no samples, by ending; none if there are none."""
    ordered = sorted((-count, ending) for ending, count in counts.items() if count)
    names = [f"{-count:,} {ending}" for count, ending in ordered]
    return (f"files left out: {shown(names)}",) if names else ()


def ways_in(place: SourceStore, paths: Iterable[str]) -> set[str]:
    """What `way_in` says of the files of a place, the empty text included."""
    folder = "" if place.folder is None else f"{place.folder}/"
    return {way_in(folder + path) for path in paths}


def field_of(name: str, path: str) -> SourceField:
    """Field of files such as `path`."""
    kind = kind_of(path)
    return SourceField(name, kind.name, encoding=kind.encoding_of(suffix_of(path)))


def check_field_name(name: str, column: str) -> None:
    """Refuse a name that fields cannot have."""
    if not _FIELD_NAME.fullmatch(name):
        raise RecipeError(
            f"Column {column} cannot be a field: its name is not of letters, digits, dots, "
            "hyphens and underscores",
            "Name the columns that count in dataset.fields, as in {text: 'My column'}.",
        )


def is_text_sample(path: str) -> bool:
    """Whether a file is a text that may be a sample, not a text about the others."""
    return suffix_of(path) == ".txt" and not _ABOUT.fullmatch(path.rpartition("/")[2])


def is_zarr(folder: Path) -> bool:
    """Whether a folder is a group of Zarr, of format 3 or 2."""
    return (folder / "zarr.json").is_file() or (folder / ".zgroup").is_file()


def chosen(spec: DatasetSpec) -> tuple[str, ...]:
    """Patterns of the containers that count; empty when the recipe names none."""
    standard = DatasetSpec.model_fields["include"].default
    return () if spec.include == standard else spec.include


def containers(
    place: SourceStore, form: str, check: Check | None = None, include: Sequence[str] = ()
) -> list[StoredFile]:
    """The files of a form below a place that match a pattern, if any is given, sorted by path."""
    others, suffixes = list[str](), FORMS[form].suffixes

    def wanted(path: str) -> bool:
        if suffix_of(path) in suffixes:
            return True
        others.append(path)
        return False

    files = files_of(place.listed(wanted, check))
    if not files:
        raise RecipeError(
            f"There is no {form} file ({', '.join(suffixes)}) among the {len(others):,} files in "
            f"{place.name}",
            max(ways_in(place, others), default="")
            or "Set dataset.source to the folder that holds them, or correct dataset.format.",
        )
    files = matching(files, place.name, include)
    for file in files:
        if not file.num_bytes:
            raise damaged(f"{place.name}/{file.path}", form, "it is empty")
    return files


def matching(files: Sequence[StoredFile], place: str, include: Sequence[str]) -> list[StoredFile]:
    """Return the containers whose paths match a pattern; all if none is given."""
    if not include:
        return list(files)
    matches = matcher(include)
    found = [file for file in files if matches(file.path)]
    if not found:
        raise RecipeError(
            f"None of the {len(files):,} containers in {place}, as '{files[0].path}', matches "
            f"dataset.include: {', '.join(include)}",
            "Its patterns are for the containers, not for what they hold; remove it to take all.",
        )
    return found


def damaged(name: str, form: str, why: object) -> DataError:
    """The error for a container that cannot be read."""
    return DataError(f"{name} cannot be read as a {form} file: {why}", "Write or copy it again.")


def no_second_label(names: Collection[str], has_classes: bool) -> None:
    """Refuse a field that is called as the number of the class is."""
    if has_classes and "label" in names:
        raise RecipeError(
            "The samples have a field 'label', and class labels from elsewhere",
            "Give that field another name, where it is made or by dataset.fields, or set "
            "dataset.labels to 'none'.",
        )


def refuse_paths(spec: DatasetSpec, form: str, label: str) -> None:
    """Refuse an index file, and labels that folders tell, where samples are no files."""
    if spec.labels == "folders":
        raise RecipeError(
            f"dataset.labels is 'folders', but samples of format '{form}' lie in no class folders",
            f"Set dataset.labels to 'field' and dataset.label_field to the {label}, or "
            "dataset.labels to 'none'.",
        )
    if spec.index is not None:
        raise RecipeError(
            f"dataset.index is '{spec.index}', but samples of format '{form}' are not told by "
            "paths",
            "Leave it out; name their own columns in dataset.label_field, group_field and "
            "split_field.",
        )


def package(name: str, source: str) -> Any:
    """Return a package that reads a source; `RecipeError` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise RecipeError(
            f"{source} needs the package {name}, which is not installed",
            f"Install it on this machine and the workers: `pip install 'headrace[{name}]'`.",
        ) from error
