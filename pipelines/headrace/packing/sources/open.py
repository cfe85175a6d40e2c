"""Opens the source of a recipe: finds out what form it has, and where its files lie."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from headrace.errors import RecipeError
from headrace.packing.samples import Source, SourceField
from headrace.packing.sources.access import NOTHING, Access
from headrace.packing.sources.detect import CONTAINERS, form_of
from headrace.packing.sources.kinds import suffix_of
from headrace.packing.sources.place import LocalPlace, Place
from headrace.packing.sources.remote import RemotePlace
from headrace.recipe.dataset import DatasetSpec
from headrace.storage.store import is_remote, open_store

_FORMS = {
    "files": "folder.FolderSource",
    "tar": "folder.tar_source",
    "webdataset": "webdataset.WebDatasetSource",
    "parquet": "parquet.ParquetSource",
    "hdf5": "hdf5.Hdf5Source",
    "function": "function.FunctionSource",
    "huggingface": "huggingface.HuggingFaceSource",
}

_INDEXES = (".csv", ".jsonl")
"""Endings of index files that are no container."""

_EXAMPLES = ("digits",)
"""What `headrace example` writes."""


def open_source(
    spec: DatasetSpec, access: Access = NOTHING, fields: tuple[SourceField, ...] = ()
) -> Source:
    """The source of a recipe; cheap, so that workers may open it for every shard.

    Args:
        spec: The recipe's dataset; workers should get that of `settled`.
        access: What the site allows; `Access.of(recipe, site)`.
        fields: The fields that the listing found, on workers.

    Raises:
        RecipeError: There is no such source, or its form is not clear.
    """
    place = open_place(spec.source or "", access)
    form = form_of(spec, place)
    if form not in _FORMS:
        raise RecipeError(f"dataset.format '{form}' is not supported")
    module, _, name = _FORMS[form].partition(".")
    make = getattr(import_module(f"headrace.packing.sources.{module}"), name)
    return cast("Source", make(spec, place, fields, access))


def settled(spec: DatasetSpec, access: Access = NOTHING) -> DatasetSpec:
    """The recipe's dataset with `format` decided and a local `source` absolute.

    Raises:
        RecipeError: There is no such source, or its form is not clear.
    """
    place = open_place(spec.source or "", access)
    source = spec.source or ""
    if place.folder is not None:
        source = str(Path(source).expanduser().absolute())
    return spec.model_copy(update={"format": form_of(spec, place), "source": source})


def open_place(source: str, access: Access = NOTHING) -> Place:
    """Where the files of a source lie.

    Args:
        source: Folder or URL, or a container file in one.
        access: What the site allows.

    Raises:
        RecipeError: There is no such folder.
    """
    if is_remote(source):
        prefix, _, only = source.rstrip("/").rpartition("/")
        if suffix_of(only) in CONTAINERS:
            return RemotePlace(open_store(prefix, access.s3), only)
        return RemotePlace(open_store(source, access.s3))
    path = Path(source.removeprefix("file://")).expanduser().absolute()
    if path.is_dir():
        return LocalPlace(path)
    if path.is_file() and suffix_of(path.name) in CONTAINERS:
        return LocalPlace(path.parent, path.name)
    problem = "is a file, not a folder" if path.exists() else "does not exist"
    hint = "Set dataset.source to the folder of the raw samples."
    if path.is_file() and suffix_of(path.name) in _INDEXES:
        hint = (
            f"Set dataset.source to {path.parent} (or wherever the files lie that it names) and "
            f"dataset.index to {path.name}."
        )
    if path.name in _EXAMPLES:
        hint = f"`headrace example {path.name} {path}` writes the samples of the example. {hint}"
    raise RecipeError(f"The source folder {path} {problem}", hint)
