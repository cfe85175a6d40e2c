"""Samples that may differ in shape to one batch: stacked, filled up, or as lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.errors import DataError
from headrace.storage.manifest import FieldInfo

SHAPE = "_shape"
"""Ending of the field with the shapes that samples had before they were filled up."""

_VARYING = ("raw", "text", "json", "wav", "flac", "audio")
"""Encodings of ragged fields whose samples differ in shape by nature."""

Names = Callable[[], Sequence[str]]
"""Gives the names of a batch's samples, for errors."""


def varies(info: FieldInfo) -> bool:
    """Whether samples of a field may differ in shape within a batch."""
    return info.layout == "ragged" and info.encoding in _VARYING


def collate(
    name: str, items: Sequence[Any], names: Names, *, varying: bool, pad: float | None
) -> dict[str, Any]:
    """One field of a batch.

    Args:
        name: Name of the field.
        items: Its samples: arrays, tensors, numbers, or anything else.
        names: Gives the names of the samples.
        varying: Whether arrays may differ in shape.
        pad: Value to fill such arrays up with to the largest of the batch; None gives lists.

    Returns:
        Arrays and numbers as `(batch, *shape)`. Arrays that may vary are a list of tensors, or
        filled up: `(batch, *largest)`, and `<name>_shape (batch, ndim) int64`. Others as a list.

    Raises:
        DataError: Samples that must be of one shape are not, or they differ in axes or dtype.
    """
    if not all(isinstance(item, Tensor | np.ndarray | np.generic | int | float) for item in items):
        return {name: list(items)}
    tensors = [torch.as_tensor(item) for item in items]
    if not varying:
        _check_alike(name, tensors, names, lambda item: item.shape)
        return {name: torch.stack(tensors)}
    if pad is None or not tensors:
        return {name: tensors}
    _check_alike(name, tensors, names, lambda item: item.ndim)
    return _filled(name, tensors, pad)


def _filled(name: str, items: Sequence[Tensor], pad: float) -> dict[str, Any]:
    shapes = torch.tensor([tuple(item.shape) for item in items], dtype=torch.int64)
    whole = torch.full((len(items), *shapes.amax(dim=0).tolist()), pad, dtype=items[0].dtype)
    for number, item in enumerate(items):
        part = whole[number]
        for axis, size in enumerate(item.shape):
            part = part.narrow(axis, 0, size)
        part.copy_(item)
    return {name: whole, name + SHAPE: shapes}


def _check_alike(
    name: str, items: Sequence[Tensor], names: Names, what: Callable[[Tensor], object]
) -> None:
    for number, item in enumerate(items):
        if what(item) != what(items[0]) or item.dtype != items[0].dtype:
            shown = names()
            raise DataError(
                f"Field '{name}' of one batch holds {_shown(items[0])} ({shown[0]}) and "
                f"{_shown(item)} ({shown[number]})",
                "Samples of one dataset must have one shape: resize them before packing, or in "
                "data.sample_transforms; arrays of varying length are filled up with data.pad.",
            )


def _shown(item: Tensor) -> str:
    return f"{str(item.dtype).removeprefix('torch.')} {tuple(item.shape)}"
