"""Files of a source that hold many samples each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from operator import lt

from headrace.errors import DataError, RecipeError
from headrace.packing.samples import SampleRef, SourceField
from headrace.packing.sources.globs import matcher
from headrace.packing.sources.kinds import suffix_of
from headrace.packing.sources.place import Place
from headrace.recipe.dataset import DatasetSpec
from headrace.storage.store import StoredFile

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def chosen(spec: DatasetSpec) -> tuple[str, ...]:
    """Patterns of the containers that count; empty when the recipe names none."""
    standard = DatasetSpec.model_fields["include"].default
    return () if spec.include == standard else spec.include


def containers(
    place: Place,
    form: str,
    suffixes: Sequence[str],
    check: Callable[[], None] | None = None,
    include: Sequence[str] = (),
) -> list[StoredFile]:
    """The files of a form below a place, sorted by path.

    Args:
        place: Where to look.
        form: What is looked for, for messages.
        suffixes: Endings of the files in lower case.
        check: Called often; may raise to stop.
        include: Patterns, one of which each must match; none for all.

    Raises:
        RecipeError: There is none.
        DataError: One is empty.
    """
    others: list[str] = []

    def wanted(path: str) -> bool:
        if suffix_of(path) in suffixes:
            return True
        others.append(path)
        return False

    files = sorted(place.walk(wanted, check))
    if not files:
        packed = sorted(path for path in others if path.lower().endswith(_COMPRESSED))
        if form in ("tar", "webdataset") and packed:
            raise RecipeError(
                f"{place.name}/{packed[0]} is a compressed tar file",
                "Single files cannot be read out of it; decompress it first (gunzip).",
            )
        raise RecipeError(
            f"There is no {form} file ({', '.join(suffixes)}) among the {len(others):,} files in "
            f"{place.name}",
            "Set dataset.source to the folder that holds them, or correct dataset.format.",
        )
    files = matching(files, place.name, include)
    for file in files:
        if not file.num_bytes:
            raise damaged(f"{place.name}/{file.path}", form, "it is empty")
    return files


def matching(files: Sequence[StoredFile], place: str, include: Sequence[str]) -> list[StoredFile]:
    """The containers whose paths match a pattern.

    Args:
        files: All containers.
        place: Where they lie, for messages.
        include: The patterns; none for all.

    Raises:
        RecipeError: None matches.
    """
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


def sorted_unique(refs: list[SampleRef]) -> list[SampleRef]:
    """Samples by path.

    Raises:
        DataError: Two have the same path.
    """
    refs.sort(key=lambda ref: ref.path)
    check_unique([ref.path for ref in refs])
    return refs


def check_unique(paths: Sequence[str]) -> None:
    """Refuse a path that is there twice.

    Args:
        paths: Paths of all samples, sorted.

    Raises:
        DataError: There is one.
    """
    if all(map(lt, paths, islice(paths, 1, None))):
        return
    double = next(one for one, other in pairwise(paths) if one == other)
    raise DataError(f"There are two samples '{double}'", "Rename or remove one of them.")


def no_second_label(fields: Sequence[SourceField], refs: Sequence[SampleRef]) -> None:
    """Refuse a field that is called as the number of the class is.

    Raises:
        RecipeError: There is one.
    """
    if refs and refs[0].label is not None and any(field.name == "label" for field in fields):
        raise RecipeError(
            "The samples have a field 'label', and class labels from elsewhere",
            "Name the fields that count in dataset.fields, with another name for that one.",
        )


def no_index(index: str | None, form: str) -> None:
    """Refuse an index file where samples are no files.

    Raises:
        RecipeError: There is one.
    """
    if index is not None:
        raise RecipeError(
            f"dataset.index is '{index}', but samples of format '{form}' are not told by paths",
            "Name their own columns in dataset.label_field, group_field and split_field.",
        )
