"""Class names of samples, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import RecipeError
from headrace.packing.listed import numbers
from headrace.recipe.dataset import DatasetSpec

_NUM_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classes, and the class of every sample."""

    classes: tuple[str, ...]
    """Class names: by number when all are whole numbers, else by alphabet; empty for none."""
    indices: Sequence[int]
    """Class index of every file, in the files' order; empty for none."""


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
    return Labels(classes=ordered, indices=numbers(map(index_of.__getitem__, names)))


def by_folders(spec: DatasetSpec) -> bool:
    """Whether the name of a sample's first folder is its label."""
    if spec.labels == "auto":
        return spec.index is None and spec.label_field is None
    return spec.labels == "folders"


def folder_labels(source: str, paths: Iterable[str]) -> list[str]:
    """Class names out of the paths of samples.

    Raises:
        RecipeError: One lies in no folder.
    """
    every = list(paths)
    for path in every:
        if "/" not in path:
            folder_label(source, path)
    return [path[: path.index("/")] for path in every]


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


def shown(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    more = ", …" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more
