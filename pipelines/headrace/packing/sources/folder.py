"""One file a sample, or several files of equal stem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.errors import DataError, RecipeError
from headrace.packing.decode import decode_arrays
from headrace.packing.labels import by_folders, folder_labels
from headrace.packing.listed import Listed
from headrace.packing.samples import (
    FileBlock,
    SampleRef,
    SourceField,
    Unreadable,
    Values,
)
from headrace.packing.sources.access import Access
from headrace.packing.sources.containers import check_unique, no_second_label
from headrace.packing.sources.contents import made_of, values_of
from headrace.packing.sources.globs import matcher
from headrace.packing.sources.index import Index, index_of
from headrace.packing.sources.kinds import ARCHIVE, field_of, kind_of, plural, suffix_of
from headrace.packing.sources.parts import Patterns, grouped, parts_of, patterns_of, values_of_parts
from headrace.packing.sources.place import Place
from headrace.packing.sources.tars import TarPlace
from headrace.recipe.dataset import DatasetSpec


def tar_source(
    spec: DatasetSpec, place: Place, fields: tuple[SourceField, ...], access: Access
) -> FolderSource:
    """Files in tar files, as if these were folders."""
    source = FolderSource(spec, TarPlace(place), fields, access)
    source.sequential = place.folder is None  # neighbours share a request
    return source


class FolderSource:
    """Files below a folder or prefix.

    Args:
        spec: Which files, and how they are labelled.
        place: Where they lie.
        fields: What the listing found, when the source is opened to read.
        access: Unused.
    """

    classes: tuple[str, ...] = ()
    sequential = False

    def __init__(
        self, spec: DatasetSpec, place: Place, fields: tuple[SourceField, ...], access: Access
    ) -> None:
        self.fields = fields
        self._place = place
        self._include = spec.include
        self._index = index_of(spec, place)
        self._by_folders = by_folders(spec)
        self._patterns = patterns_of(spec.fields)

    def list_samples(self, check: Callable[[], None] | None = None) -> Sequence[SampleRef]:
        """All samples, sorted by path, from one pass over the names."""
        listed = self._several(check) if self._patterns else self._single(check)
        check_unique(listed.paths)
        if self._by_folders:
            name, inside = self._place.name, self._place.inside
            listed = listed.having(label=folder_labels(name, map(inside, listed.paths)))
        elif self._index is not None:
            listed = Listed.of(self._index.matched(listed))
            self.fields = with_columns(self.fields, self._index)
        no_second_label(self.fields, listed)
        return listed

    def read(self, refs: Sequence[SampleRef]) -> Iterator[Values | Unreadable]:
        """Values of a batch of samples, in order."""
        index, fields = self._index, self.fields
        num_own = self._num_own(refs)
        own = self._read_own(refs, fields[:num_own])
        if index is None or len(fields) == num_own:
            return own
        return joined(own, index.values(fields[num_own:], refs))

    def blocks(self, refs: Sequence[SampleRef]) -> Iterator[FileBlock] | None:
        """Whole files, when these are the samples, in blocks."""
        alone = len(self.fields) == 1 and not self._patterns
        if not alone or (refs and suffix_of(refs[0].path) == ARCHIVE):
            return None
        return self._place.blocks(Listed.of(refs))

    def _num_own(self, refs: Sequence[SampleRef]) -> int:
        if self._patterns:
            return len(self._patterns)
        if refs and suffix_of(refs[0].path) == ARCHIVE:
            return sum(field.kind == "array" for field in self.fields)
        return 1

    def _read_own(
        self, refs: Sequence[SampleRef], fields: tuple[SourceField, ...]
    ) -> Iterator[Values | Unreadable]:
        if self._patterns:
            return values_of_parts(refs, self._place.read(parts_of(self._patterns, refs)), fields)
        contents = self._place.read(Listed.of(refs).files())
        if refs and suffix_of(refs[0].path) == ARCHIVE:
            return _archives(refs, contents, tuple(field.name for field in fields))
        return values_of(refs, contents, fields[0])

    def _single(self, check: Callable[[], None] | None) -> Listed:
        listed = included(self._place, self._include, self._index, check)
        if not listed:
            raise nothing_found(self._place, self._include)
        self.fields = self._fields_of(listed)
        return listed

    def _fields_of(self, listed: Listed) -> tuple[SourceField, ...]:
        example = one_kind(listed.paths)
        if suffix_of(example) != ARCHIVE:
            return (field_of(kind_of(example), example),)
        (content,) = self._place.read([listed[listed.paths.index(example)][:3]])
        values = made_of(example, content, decode_arrays)
        if isinstance(values, Unreadable):
            raise DataError(
                f"{self._place.name}/{example}, whose arrays name the fields, cannot be read: "
                f"{values.reason}",
                "Repair or remove it.",
            )
        return tuple(SourceField(name, "array") for name in values)

    def _several(self, check: Callable[[], None] | None) -> Listed:
        found = sorted(grouped(self._patterns, self._place, check))
        self.fields = pattern_fields(self._patterns)
        return Listed.of(found)


def included(
    place: Place, include: Sequence[str], index: Index | None, check: Callable[[], None] | None
) -> Listed:
    """The files that match, sorted by path."""
    matches = matcher(include)
    if index is None:
        return place.listed(matches, check)
    skipped = index.path
    return place.listed(lambda path: path != skipped and matches(path), check)


def one_kind(paths: Sequence[str]) -> str:
    """The first of the names, when all are of one kind.

    Raises:
        RecipeError: They are of several kinds.
    """
    endings = {path[path.rfind(".") :]: path for path in reversed(paths)}
    firsts = {suffix_of(path): path for path in sorted(endings.values())[::-1]}
    first, *others = (firsts[suffix] for suffix in sorted(firsts))
    kind = kind_of(first)
    for other in others:
        if kind_of(other) != kind or ARCHIVE in (suffix_of(first), suffix_of(other)):
            raise RecipeError(
                f"The source holds both {plural(kind)} ('{first}') and "
                f"{plural(kind_of(other))} ('{other}')",
                "Narrow dataset.include to one kind, or name the files of each field in "
                "dataset.fields.",
            )
    return first


def nothing_found(place: Place, include: Sequence[str]) -> RecipeError:
    """The error for a source without a sample."""
    patterns = ", ".join(include)
    num_others = sum(1 for _ in place.names())
    if num_others == 0:
        return RecipeError(
            f"The source folder {place.name} is empty", f"Expected files: {patterns}."
        )
    return RecipeError(
        f"None of the {num_others:,} files in {place.name} matches dataset.include: {patterns}",
        "Set dataset.include to patterns that match your samples.",
    )


def pattern_fields(patterns: Patterns) -> tuple[SourceField, ...]:
    """Fields of file patterns, in the recipe's order."""
    return tuple(field_of(name, pattern.path_of("x")) for name, pattern in patterns.items())


def with_columns(fields: tuple[SourceField, ...], index: Index) -> tuple[SourceField, ...]:
    """Fields of the files, and then those of the index.

    Raises:
        RecipeError: A field comes from both.
    """
    names = {field.name for field in fields}
    both = [field.name for field in index.fields if field.name in names]
    if both:
        raise RecipeError(
            f"Field '{both[0]}' comes from the files and from a column of {index.path}",
            "Name the columns that count in dataset.fields, as in {text: 'column'}.",
        )
    return fields + index.fields


def joined(
    own: Iterator[Values | Unreadable], rows: Sequence[Values]
) -> Iterator[Values | Unreadable]:
    """Values of files together with those of their rows."""
    for values, row in zip(own, rows, strict=True):
        yield values if isinstance(values, Unreadable) else {**values, **row}


def _archives(
    refs: Sequence[SampleRef], contents: Iterator[bytes | Unreadable], names: tuple[str, ...]
) -> Iterator[Values | Unreadable]:
    for ref, content in zip(refs, contents, strict=True):
        yield made_of(ref.path, content, lambda archive: decode_arrays(archive, names))
