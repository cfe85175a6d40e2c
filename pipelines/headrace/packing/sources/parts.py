"""Files to values; files of one stem are one sample of several fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError, UnreadableError
from headrace.fields.field_kind import Value, kind_named
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sample_table import SampleTable, by_path, columns_of, joined, shown
from headrace.packing.samples import SourceField, Unreadable, Values
from headrace.packing.sources.source_store import Content, SourceStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FilePattern:
    """File names `<folder>**/<prefix>*<suffix>`; what the star stands for is the stem."""

    folder: str
    prefix: str
    suffix: str

    @classmethod
    def of(cls, field: str, glob: str) -> FilePattern:
        """The pattern of a field in the recipe."""
        folder, slash, name = glob.removeprefix("**/").rpartition("/")
        if name.count("*") != 1 or "*" in folder:
            raise RecipeError(
                f"dataset.fields.{field} is '{glob}'",
                "Write a pattern with one star in the file's name, as in '*.jpg' or "
                "'masks/*_mask.png'; files for which the star stands for the same are one sample.",
            )
        prefix, _, suffix = name.partition("*")
        return cls(folder=folder + slash, prefix=prefix, suffix=suffix)

    def stem_of(self, path: str) -> str | None:
        """Folder below `folder` and stem of a file; None when it does not match."""
        if not path.startswith(self.folder):
            return None
        folder, slash, name = path[len(self.folder) :].rpartition("/")
        end = len(name) - len(self.suffix)
        matches = name.startswith(self.prefix) and name.endswith(self.suffix)
        if not matches or end <= len(self.prefix):
            return None
        return folder + slash + name[len(self.prefix) : end]

    def path_of(self, stem: str) -> str:
        """The file of a stem."""
        folder, slash, name = stem.rpartition("/")
        return f"{self.folder}{folder}{slash}{self.prefix}{name}{self.suffix}"


Patterns = Mapping[str, FilePattern]
"""Pattern by field; that of the first names the sample."""


def patterns_of(fields: Mapping[str, str]) -> Patterns:
    """Patterns of `dataset.fields`; entries without a star are names of columns, not files."""
    return {name: FilePattern.of(name, glob) for name, glob in fields.items() if "*" in glob}


def grouped(patterns: Patterns, place: SourceStore, check: Check | None = None) -> SampleTable:
    """Samples of the files below a place; each is named by the file of its first field."""
    # of several patterns that match a file, the one that fixes most characters counts
    order = sorted(patterns.items(), key=lambda item: len(item[1].path_of("")), reverse=True)
    matched = place.listed(lambda path: any(part.stem_of(path) for _, part in order), check)
    if not matched:
        raise RecipeError(
            f"No file in {place.name} matches a pattern of dataset.fields",
            f"Patterns match names as they are written: {', '.join(map(str, patterns))}.",
        )
    stems, files = _stems([(list(patterns).index(name), part) for name, part in order], matched)
    _check_whole(patterns, place, stems, files)
    versions = matched.column("version").cast("large_string")
    sizes = matched.numbers("bytes")[files]
    return by_path(
        SampleTable.of(
            path=matched.paths.take(files[:, 0]),
            bytes=sizes.sum(axis=1),
            version=joined(*(versions.take(at) for at in files.T), separator="+"),
            places=sizes.T,
        )
    )


def _stems(
    order: Sequence[tuple[int, FilePattern]], matched: SampleTable
) -> tuple[Any, NDArray[np.int64]]:
    """Stem of each sample, and its files by the number of their pattern, -1 for none.

    Of the patterns, with their numbers, the first that matches a file counts.
    """
    found = (
        next((stem, number) for number, pattern in order if (stem := pattern.stem_of(path)))
        for path in matched.iter_paths()
    )
    texts, fields = columns_of(found, pa.large_string(), pa.int64())
    stems = texts.dictionary_encode()
    files = np.full((len(stems.dictionary), len(order)), -1, dtype=np.int64)
    files[stems.indices.to_numpy(), fields.to_numpy()] = np.arange(len(matched))
    return stems.dictionary, files


def parts_of(patterns: Patterns, refs: SampleTable) -> list[StoredFile]:
    """The files of samples, sample after sample, in the order of the fields."""
    first = next(iter(patterns.values()))
    files: list[StoredFile] = []
    for ref in refs:
        stem = first.stem_of(ref.path) or ""
        paths = (pattern.path_of(stem) for pattern in patterns.values())
        sizes, versions = ref.where[: len(patterns)], ref.version.split("+")
        files += map(StoredFile, paths, sizes, versions)
    return files


def values_of(
    refs: SampleTable, contents: Iterator[Content], fields: Sequence[SourceField]
) -> Iterator[Values | Unreadable]:
    """Values of samples of one file for each field."""
    converters = [
        (field.name, partial(kind_named(field.kind).read, dtype=field.dtype)) for field in fields
    ]
    for ref in refs:
        values: dict[str, Value] = {}
        bad: Unreadable | None = None
        for name, convert in converters:
            made = made_of(ref.path, next(contents), convert)
            if not isinstance(made, Unreadable):
                values[name] = made
            elif bad is None:
                bad = made if len(fields) == 1 else Unreadable(ref.path, f"{name}: {made.reason}")
        yield bad or values


def made_of(path: str, content: Content, convert: Callable[[bytes], T]) -> T | Unreadable:
    """What `convert` makes of a file's bytes, or why it cannot."""
    try:
        if isinstance(content, UnreadableError):
            raise content
        return convert(content) if content else Unreadable(path, "the file is empty")
    except UnreadableError as error:
        return Unreadable(path, str(error))


def _check_whole(
    patterns: Patterns, place: SourceStore, stems: Any, files: NDArray[np.int64]
) -> None:
    missing = [
        pattern.path_of(stem)
        for pattern, column in zip(patterns.values(), files.T, strict=True)
        for stem in stems.take(np.flatnonzero(column < 0)).to_pylist()
    ]
    if missing:
        raise DataError(
            f"{len(missing):,} files of {len(stems):,} samples are missing in {place.name}: "
            f"{shown(sorted(missing))}",
            "Each sample needs a file for every field of dataset.fields.",
        )
