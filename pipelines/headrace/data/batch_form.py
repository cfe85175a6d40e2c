"""The form in which a model gets a batch: a dict of fields, one field, or a tuple of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.data.transforms import SAMPLE_ID, WHOLE, Batch, Transform, shown
from headrace.errors import DataError, nearest

_MOST_SHOWN = 8
_OF_BYTES = (
    " Layers take floats: {_target_: headrace.data.transforms.ScaleToUnit} in data.transforms "
    "makes them of images in uint8."
)


def transformed(batch: Batch, transforms: Iterable[Transform]) -> Batch:
    """Apply transforms to the fields, or to what the user's `collate` returned."""
    whole = batch.get(WHOLE, batch)
    for transform in transforms:
        whole = transform(whole)
    return {**batch, WHOLE: whole} if WHOLE in batch else whole


def formed(batch: Batch, form: str | Sequence[str] | None) -> Any:
    """Return a batch as the model takes it.

    Args:
        batch: Fields by name, with `sample_id (batch,)`.
        form: The recipe's `data.batch`: a field's name, names for a tuple, or None for a dict.

    Raises:
        DataError: The batch lacks a field.
    """
    if WHOLE in batch:
        return batch[WHOLE]
    if form is None:
        return batch
    if isinstance(form, str):
        return _field(batch, form)
    return tuple(_field(batch, name) for name in form)


def first_of(made: Any) -> Any:
    """Return what `forward` takes of a batch: the first part of a tuple, any other whole."""
    return made[0] if isinstance(made, tuple | list) else made


def description(made: Any) -> str:
    """Return what a batch holds and how a model takes it, for the hint of a failed step."""
    whole = f"The batch is a {parts_of(made)}"
    names = [str(name) for name in made if name != SAMPLE_ID] if isinstance(made, Mapping) else []
    advice = "."
    if names:
        advice = (
            f": take a field as batch['{names[0]}']. To get a tuple instead, as for "
            f"`x, y = batch`, write data.batch: [{', '.join(names)}] in the recipe."
        )
    return f"{whole}{advice}{_OF_BYTES if 'uint8' in whole else ''}"


def parts_of(made: Any) -> str:
    """Return what a batch holds, as `dict of image float32 (32, 3, 8, 8), label int64 (32,)`."""
    if isinstance(made, Mapping):
        return _listed("dict", (f"{name} {shown(value)}" for name, value in made.items()))
    parts = made if isinstance(made, tuple | list) else [made]
    return _listed(type(made).__name__, map(shown, parts))


def _field(batch: Batch, name: str) -> Any:
    if name not in batch:
        raise DataError(
            f"data.batch names the field '{name}', which is missing", nearest(name, batch)
        )
    return batch[name]


def _listed(kind: str, parts: Iterable[str]) -> str:
    listed = list(parts)
    more = ", …" if len(listed) > _MOST_SHOWN else ""
    return f"{kind} of {', '.join(listed[:_MOST_SHOWN])}{more}"
