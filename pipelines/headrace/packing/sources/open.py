"""Opens the source of a recipe: finds out what form it has, and where its files lie."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import cast

from headrace.errors import RecipeError
from headrace.objects.store import LocalStore, is_remote, open_store
from headrace.packing.samples import NOTHING, Access, Fields, Opening, Source
from headrace.packing.sources.files import FORMS, is_text_sample, is_zarr, suffix_of, way_in
from headrace.packing.sources.parts import patterns_of
from headrace.packing.sources.source_store import SourceStore, refuse_link
from headrace.packing.sources.webdataset import is_webdataset
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.globs import matcher

_SUFFIXES = {suffix for form in FORMS.values() for suffix in form.suffixes}
_EXAMPLES = ("digits",)  # what `headrace example` writes


def open_source(spec: DatasetSpec, access: Access = NOTHING, fields: Fields = ()) -> Source:
    """The source of a recipe; cheap, so that workers may open it for every shard.

    Workers should pass the `fields` that the listing found, and the dataset of `with_format`.

    Raises:
        RecipeError: The source does not exist, or its form is not clear.
    """
    place = open_place(spec.source or "", access)
    form = _form_of(spec, place)
    if spec.query is not None and form != "sql":
        raise RecipeError(
            f"dataset.query is given, but {place.name} is of format '{form}', not a database",
            "Leave it out, or set dataset.source to a database: a file "
            f"{', '.join(FORMS['sql'].suffixes)}.",
        )
    return class_of(form)(Opening(spec=spec, place=place, fields=fields, access=access))


def class_of(form: str) -> type[Source]:
    """Return the class of the sources of a form."""
    module, _, name = FORMS[form].source.partition(".")
    return cast("type[Source]", getattr(import_module(f"headrace.packing.sources.{module}"), name))


def with_format(spec: DatasetSpec, access: Access = NOTHING) -> DatasetSpec:
    """The recipe's dataset with `format` decided and a local `source` absolute."""
    place = open_place(spec.source or "", access)
    source = spec.source or ""
    if place.folder is not None:
        source = str(place.folder / place.only)
    return spec.model_copy(update={"format": _form_of(spec, place), "source": source})


def _form_of(spec: DatasetSpec, place: SourceStore) -> str:
    """The form that the recipe names, or else that of the files.

    Files that `dataset.include` or `dataset.fields` match are samples; only where there is none,
    containers are looked for.
    """
    if spec.format != "auto":
        return spec.format
    if spec.reader is not None:
        return "function"
    if (alone := _form_with(suffix_of(place.only), "file")) is not None:
        return alone
    if place.folder is not None and is_zarr(place.folder):
        return "zarr"
    found = _containers_of(spec, place)
    if len(found) > 1:
        first, second, *_ = sorted(found.values())
        raise RecipeError(
            f"{place.name} holds '{first}' and '{second}', files of different forms",
            f"Set dataset.format to one of {', '.join(sorted(found))}.",
        )
    form: str = next(iter(found), "files")
    if form == "tar" and spec.index is None and is_webdataset(spec, place, found["tar"]):
        return "webdataset"
    return form


def _containers_of(spec: DatasetSpec, place: SourceStore) -> dict[str, str]:
    """The first container of every form; empty as soon as a file is a sample.

    A table of lines counts only where there are neither other containers nor texts.
    """
    patterns = patterns_of(spec.fields)
    matches = matcher(spec.include)
    found: dict[str, str] = {}
    has_texts = False
    for path in place.names():
        form = _form_with(suffix_of(path), "folder", "table")
        if path == spec.index:
            continue
        if form is not None:
            found[form] = min(path, found.get(form, path))
        elif any(pattern.stem_of(path) for pattern in patterns.values()) or matches(path):
            return {}
        has_texts = has_texts or is_text_sample(path)
    others = {form: path for form, path in found.items() if FORMS[form].taken != "table"}
    return others if others or has_texts else found


@cache
def _form_with(suffix: str, *taken: str) -> str | None:
    """Return the form of files with an ending, of those that are taken so."""
    forms = (name for name, form in FORMS.items() if form.taken in taken)
    return next((name for name in forms if suffix in FORMS[name].suffixes), None)


def form_of_file(source: str) -> str | None:
    """Return the form that a file of this machine has by its ending; None for others."""
    form = _form_with(suffix_of(source), "file")
    return form if form and Path(os.path.expanduser(source)).is_file() else None


def open_place(source: str, access: Access = NOTHING) -> SourceStore:
    """Where the files of a folder or URL lie, or a container file; `RecipeError` if nowhere."""
    if is_remote(source):
        prefix, _, only = source.rstrip("/").rpartition("/")
        if suffix_of(only) in _SUFFIXES:
            return SourceStore(open_store(prefix, access.s3), only)
        refuse_file(source)
        return SourceStore(open_store(source, access.s3))
    path = Path(source.removeprefix("file://")).expanduser().absolute()
    if path.is_dir():
        return SourceStore(LocalStore(str(path), refuse_link))
    if path.is_file() and suffix_of(path.name) in _SUFFIXES:
        return SourceStore(LocalStore(str(path.parent), refuse_link), path.name)
    problem = "is a file, not a folder" if path.exists() else "does not exist"
    raise RecipeError(f"The source folder {path} {problem}", _right_source(path))


def refuse_file(url: str) -> None:
    """Refuse a URL whose ending says that it is a file that is not read as it is."""
    if is_remote(url) and (way := way_in(url.rstrip("/").rpartition("/")[2])):
        raise RecipeError(f"{url} is a file, not a folder", way)


def _right_source(path: Path) -> str:
    if path.is_file() and (way := way_in(str(path))):
        return f"{way} Then set dataset.source to what it writes."
    hint = "Set dataset.source to the folder of the raw samples."
    if path.name in _EXAMPLES:
        return f"`headrace example {path.name} {path}` writes the samples of the example. {hint}"
    return hint
