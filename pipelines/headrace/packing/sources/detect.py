"""Which form a source has, told by the names of its files."""

from __future__ import annotations

from headrace.errors import RecipeError
from headrace.packing.sources.globs import any_of
from headrace.packing.sources.kinds import suffix_of
from headrace.packing.sources.parts import patterns_of
from headrace.packing.sources.place import Place
from headrace.packing.sources.webdataset import is_webdataset
from headrace.recipe.dataset import DatasetSpec, SourceFormat

_FILES: SourceFormat = "files"

CONTAINERS: dict[str, SourceFormat] = {
    ".tar": "tar",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".parquet": "parquet",
    ".arrow": "huggingface",
}
"""Form by the ending of files that hold many samples."""


def form_of(spec: DatasetSpec, place: Place) -> SourceFormat:
    """The form that the recipe names, or else that of the files.

    Files that `dataset.include` or `dataset.fields` match are samples; only where there is none,
    containers are looked for.

    Raises:
        RecipeError: There are containers of several forms.
    """
    if spec.format != "auto":
        return spec.format
    if spec.reader is not None:
        return "function"
    found = _found(spec, place)
    if len(found) > 1:
        first, second, *_ = sorted(found.values())
        raise RecipeError(
            f"{place.name} holds '{first}' and '{second}', files of different forms",
            f"Set dataset.format to one of {', '.join(sorted(found))}.",
        )
    form = next(iter(found), _FILES)
    if form == "tar" and spec.index is None and is_webdataset(spec, place, found["tar"]):
        return "webdataset"
    return form


def _found(spec: DatasetSpec, place: Place) -> dict[SourceFormat, str]:
    """The first container of every form; empty as soon as a file is a sample."""
    patterns = patterns_of(spec.fields)
    matches = any_of(spec.include).fullmatch
    found: dict[SourceFormat, str] = {}
    for path in place.names():
        form = CONTAINERS.get(suffix_of(path))
        if path == spec.index:
            continue
        if form is not None:
            found[form] = min(path, found.get(form, path))
        elif any(pattern.stem_of(path) for pattern in patterns.values()) or matches(path):
            return {}
    return found
