"""What packing would refuse, whatever the source holds, as the recipe alone shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.errors import RecipeError
from headrace.fields.field_kind import kinds
from headrace.packing.fields import check_names, check_options, options_set
from headrace.packing.samples import SourceField
from headrace.packing.sources.files import FORMS, field_of, no_second_label
from headrace.packing.sources.open import class_of, form_of_file, refuse_file
from headrace.packing.sources.parts import patterns_of
from headrace.recipe.dataset import DatasetSpec, PackSpec

T = TypeVar("T")


def check_recipe(dataset: DatasetSpec, pack: PackSpec) -> None:
    """Refuse raw samples and options that packing would refuse; opens nothing.

    What depends on the source is refused only if no form of source and no kind of field takes it.

    Raises:
        RecipeError: As packing would.
    """
    if dataset.source is None:
        return
    refuse_file(dataset.source)
    _check_form(dataset)
    is_named = dataset.labels in ("folders", "index", "field") or dataset.label_field is not None
    is_class = dataset.label_kind == "class" and dataset.labels != "none"
    no_second_label(dataset.fields, is_class and is_named)
    if dataset.fields and dataset.index is None:
        number = ["label"] if dataset.label_kind == "value" else []
        check_names(pack, [*dataset.fields, *number])
    for name in pack.fields:
        _unless_all_refuse(lambda each: check_options(each, pack), _fields(name, dataset, pack))


def _check_form(dataset: DatasetSpec) -> None:
    form = "function" if dataset.reader is not None else dataset.format
    if form == "auto":
        patterns_of(dataset.fields)
    every = [each for each in FORMS if FORMS[each].taken != "named"]
    forms = every if form == "auto" else [form]
    if form == "auto" and (alone := form_of_file(dataset.source or "")):
        forms = [alone]
    _unless_all_refuse(lambda each: class_of(each).check_spec(dataset), forms)


def _fields(name: str, dataset: DatasetSpec, pack: PackSpec) -> list[SourceField]:
    """Return what a field may be: of one kind if the recipe shows it, else the likeliest first."""
    source = dataset.fields.get(name, "")
    if dataset.format == "webdataset" and source:
        return [field_of(name, f"x.{ending}") for ending in source.split(";")]
    if dataset.format in ("auto", "files", "tar") and "*" in source:
        return [field_of(name, patterns_of({name: source})[name].path_of("x"))]
    options = set(options_set(pack.fields[name]))
    likeliest = sorted(kinds().values(), key=lambda kind: -len(options & {*kind.options}))
    return [SourceField(name, kind.name) for kind in likeliest]


def _unless_all_refuse(check: Callable[[T], object], candidates: Iterable[T]) -> None:
    """Raise the error of the first candidate if there is one for each."""
    errors = []
    for candidate in candidates:
        try:
            check(candidate)
        except RecipeError as error:
            errors.append(error)
        else:
            return
    raise errors[0]
