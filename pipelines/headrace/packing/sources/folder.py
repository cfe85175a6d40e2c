"""One file a sample, or several files of equal stem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.errors import DataError, RecipeError
from headrace.fields.array import ARCHIVE, decode_arrays
from headrace.objects.protocol import Check
from headrace.packing.sample_table import SampleTable, files_of
from headrace.packing.samples import Fields, Opening, Source, SourceField, Unreadable, Values
from headrace.packing.sources.files import (
    chosen,
    field_of,
    is_text_sample,
    kind_of,
    left_out,
    no_second_label,
    suffix_of,
    ways_in,
)
from headrace.packing.sources.folder_layout import with_folders
from headrace.packing.sources.index import Index, check_index
from headrace.packing.sources.parts import grouped, made_of, parts_of, patterns_of, values_of
from headrace.packing.sources.source_store import Content, SourceStore
from headrace.packing.sources.tars import TarStore
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.globs import matcher

_ANNOTATIONS = (".json", ".xml", ".csv", ".tsv", ".jsonl")
_UNREAD = "files may be annotations: dataset.format (coco, voc, yolo) or dataset.index reads them"


class FolderSource(Source):
    """Files below a folder or prefix."""

    _takes_columns = True  # those of the index that have no other meaning are fields

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        spec = opening.spec
        self._index = self._index_of(opening)
        untold = self._index is None and spec.label_field is None
        self._by_folders = spec.labels == "folders" or (spec.labels == "auto" and untold)
        self._patterns = patterns_of(spec.fields)

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        check_index(spec)
        patterns_of(spec.fields)

    @property
    def folder(self) -> Path | None:
        """The local folder in which the samples are files; None when they are not."""
        return self._place.folder

    def list_samples(self, check: Check | None = None) -> SampleTable:
        if self._patterns:
            listed = grouped(self._patterns, self._place, check)
            prefix = next(iter(self._patterns.values())).folder
            patterns = self._patterns.items()
            self.fields = tuple(field_of(name, part.path_of("x")) for name, part in patterns)
        else:
            listed, prefix = _included(self._place, self._spec, self._index, check), ""
            self.fields = self._fields_of(listed)
            listed = self._expanded(listed, check)
        if self._index is not None:
            listed = self._index.matched(listed)
            self.fields = _with_columns(self.fields, self._index)
            self.quarantined = self._index.quarantined
        listed, self.notes = with_folders(
            listed, self._spec, self._place, prefix, labelled=self._by_folders
        )
        if self._index is not None:
            self.notes += self._index.notes
            self._place.left_out.subtract(map(suffix_of, self._index.paths))
        if self._index is None and any(map(self._place.left_out.get, _ANNOTATIONS)):
            self.notes += (_UNREAD,)
        self.notes += left_out(self._place.left_out)
        no_second_label([each.name for each in self.fields], listed.has("label"))
        return listed

    def read(self, refs: SampleTable) -> Iterator[Values | Unreadable]:
        num_own = self._num_own(refs)
        own = self._read_own(refs, self.fields[:num_own])
        if self._index is None or len(self.fields) == num_own:
            return own
        pairs = zip(own, self._index.values(self.fields[num_own:], refs), strict=True)
        return (_joined(*pair) for pair in pairs)

    def is_of_arrays(self, refs: SampleTable) -> bool:
        """Whether samples are whole `.npy` files."""
        kinds = [field.kind for field in self.fields]
        return kinds == ["array"] and not self._patterns and not _are_archives(refs)

    def _index_of(self, opening: Opening) -> Index | None:
        has_index = opening.spec.index is not None
        return Index(opening, every=self._takes_columns) if has_index else None

    def _num_own(self, refs: SampleTable) -> int:
        """How many of the fields are files, not columns of the index."""
        if self._patterns:
            return len(self._patterns)
        if _are_archives(refs):
            return sum(field.kind == "array" for field in self.fields)
        return 1

    def _read_own(self, refs: SampleTable, fields: Fields) -> Iterator[Values | Unreadable]:
        if self._patterns:
            return values_of(refs, self._place.read(parts_of(self._patterns, refs)), fields)
        contents = self._place.read(files_of(refs))
        if _are_archives(refs):
            return _archives(refs, contents, tuple(field.name for field in fields))
        return values_of(refs, contents, fields)

    def _expanded(self, listed: SampleTable, check: Check | None) -> SampleTable:
        """Return the samples of files, if these hold several."""
        del check
        return listed

    def _fields_of(self, listed: SampleTable) -> Fields:
        example = _one_kind(listed.iter_paths())
        if suffix_of(example) != ARCHIVE:
            return (field_of(kind_of(example).name, example),)
        ref = next(ref for ref in listed if ref.path == example)
        (content,) = self._place.read(files_of([ref]))
        values = made_of(example, content, decode_arrays)
        if isinstance(values, Unreadable):
            raise DataError(
                f"{self._place.name}/{example}, whose arrays name the fields, cannot be read: "
                f"{values.reason}",
                "Repair or remove it.",
            )
        return tuple(SourceField(name, "array") for name in values)


class TarSource(FolderSource):
    """Files in tar files, as if these were folders."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(replace(opening, place=TarStore(opening.place)))
        self.sequential = opening.place.folder is None  # neighbours share a request


def _joined(file: Values | Unreadable, row: Values | Unreadable) -> Values | Unreadable:
    """The values of a sample's file and of its row."""
    if isinstance(file, Unreadable):
        return file
    return row if isinstance(row, Unreadable) else {**file, **row}


def _included(
    place: SourceStore, spec: DatasetSpec, index: Index | None, check: Check | None
) -> SampleTable:
    skipped = index.paths if index is not None else frozenset[str]()
    for matches in (matcher(spec.include), *(() if chosen(spec) else (is_text_sample,))):
        found = place.listed(partial(_is_wanted, matches, skipped), check)
        if found:
            return found
    patterns = ", ".join(spec.include)
    others = list(place.names())
    if not others:
        raise RecipeError(
            f"The source folder {place.name} is empty",
            f"Put your samples there, or set dataset.source to their folder. Expected: {patterns}.",
        )
    raise RecipeError(
        f"None of the {len(others):,} files in {place.name} matches dataset.include: {patterns}; "
        f"{''.join(left_out(place.left_out))}",
        min(ways_in(place, others)) or "Set dataset.include to patterns that match your samples.",
    )


def _is_wanted(matches: Callable[[str], bool], skipped: frozenset[str], path: str) -> bool:
    return path not in skipped and matches(path)


def _with_columns(fields: Fields, index: Index) -> Fields:
    names = {field.name for field in fields}
    both = [field.name for field in index.fields if field.name in names]
    if both:
        raise RecipeError(
            f"Field '{both[0]}' comes from the files and from a column of {index.name}",
            "Name the columns that count in dataset.fields, as in {text: 'column'}.",
        )
    return fields + index.fields


def _are_archives(refs: SampleTable) -> bool:
    return bool(refs) and suffix_of(refs[0].path) == ARCHIVE


def _one_kind(paths: Iterable[str]) -> str:
    """The first of the names, when all are of one kind."""
    endings: dict[str, str] = {}
    for path in paths:
        endings.setdefault(path[path.rfind(".") :], path)
    firsts = {suffix_of(path): path for path in sorted(endings.values())[::-1]}
    first, *others = (firsts[suffix] for suffix in sorted(firsts))
    kind = kind_of(first)
    for other in others:
        if kind_of(other) != kind or ARCHIVE in (suffix_of(first), suffix_of(other)):
            raise RecipeError(
                f"The source holds both {kind.plural} ('{first}') and "
                f"{kind_of(other).plural} ('{other}')",
                "Narrow dataset.include to one kind, or name the files of each field in "
                "dataset.fields.",
            )
    return first


def _archives(
    refs: SampleTable, contents: Iterator[Content], names: Sequence[str]
) -> Iterator[Values | Unreadable]:
    decode = partial(decode_arrays, names=names)
    for ref, content in zip(refs, contents, strict=True):
        yield made_of(ref.path, content, decode)
