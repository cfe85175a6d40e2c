"""The form in which a model gets a batch: a dict of fields, one field, or a tuple of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.data.transforms import SAMPLE_ID, WHOLE, Batch, Transform, shown
from headrace.errors import DataError, nearest

_MOST_SHOWN = 8


def transformed(batch: Batch, transforms: Iterable[Transform]) -> Batch:
    """Apply transforms to the fields, or to what the user's `collate` returned."""
    whole = batch.get(WHOLE, batch)
    for transform in transforms:
        whole = transform(whole)
    return {**batch, WHOLE: whole} if WHOLE in batch else whole


def formed(batch: Batch, form: str | Sequence[str] | None) -> Any:
    """Return a batch as the model takes it, by the recipe's `data.batch`.

    That is a field's name, names for a tuple, or None for a dict.

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
    form = "."
    if names:
        form = (
            f": take a field as batch['{names[0]}']. To get a tuple instead, as for "
            f"`x, y = batch`, write data.batch: [{', '.join(names)}] in the recipe."
        )
    values = made.values() if isinstance(made, Mapping) else _as_parts(made)
    return " ".join([f"{whole}{form}", *_advice([v for v in values if isinstance(v, Tensor)])])


def _as_parts(made: Any) -> Sequence[Any]:
    return made if isinstance(made, tuple | list) else [made]


def _advice(tensors: Sequence[Tensor]) -> Iterator[str]:
    """Yield what makes layers take tensors that they often refuse."""
    dtypes, transforms = {each.dtype for each in tensors}, "headrace.data.transforms"
    if torch.uint8 in dtypes:
        yield f"{{_target_: {transforms}.ScaleToUnit}} in data.transforms makes floats of images."
    if any(t.ndim == 4 and t.shape[3] in (1, 3, 4) and t.shape[1] > 4 for t in tensors):
        yield (
            f"Convolutions take channels first: {{_target_: {transforms}.ChannelsFirst}} in "
            "data.transforms moves them. pack.fields.NAME.channels sets their number."
        )
    if torch.float64 in dtypes:
        yield "pack.fields.NAME.dtype: float32 stores numbers in the precision of most layers."


def parts_of(made: Any) -> str:
    """Return what a batch holds, as `dict of image float32 (32, 3, 8, 8), label int64 (32,)`."""
    if isinstance(made, Mapping):
        return _listed("dict", (f"{name} {shown(value)}" for name, value in made.items()))
    return _listed(type(made).__name__, map(shown, _as_parts(made)))


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
