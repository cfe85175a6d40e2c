"""Single samples: transforms applied to each, and how samples become one batch."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.errors import DataError, HeadraceError, UserCodeError
from headrace.files.manifest import FieldInfo

Sample = dict[str, Any]
"""Fields of one sample by name: tensors, text as `str`; and `sample_id () int64`."""

SampleTransform = Callable[..., Sample]
"""Takes a sample, and `generator` when it has a parameter of that name."""

Batch = dict[str, Any]
"""Fields by name, and `sample_id (batch,) int64`.

Each is a tensor `(batch, *shape)`; fields that vary in shape by nature, such as text and arrays of
varying length, are lists of samples unless they are filled up, see `collate`.
"""

SAMPLE_ID = "sample_id"

SHAPE = "_shape"
"""Ending of the field with the shapes that samples had before they were filled up."""

_VARYING = ("raw", "text", "json", "wav", "flac", "audio")
"""Encodings of ragged fields whose samples differ in shape by nature."""

Names = Callable[[], Sequence[str]]
"""Gives the names of a batch's samples, for errors."""


class SampleChain:
    """Applies transforms to single samples, in order."""

    def __init__(self, transforms: Sequence[SampleTransform]) -> None:
        self._steps = [(transform, _takes_generator(transform)) for transform in transforms]

    def __call__(self, sample: Sample, seed: int | None) -> Sample:
        """Apply them.

        Args:
            sample: The sample.
            seed: Seed of the generator that transforms may take; None gives them None, for
                validation and evaluation, where nothing should be random.

        Raises:
            UserCodeError: A transform raised, or gave something else than a sample.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for transform, takes_generator in self._steps:
            try:
                options = {"generator": generator} if takes_generator else {}
                sample = _checked(transform(sample, **options))
            except (HeadraceError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                raise UserCodeError(
                    f"{_name(transform)} raised {type(error).__name__}: {error}",
                    "data.sample_transforms take a sample, a dict of its fields, and return one.",
                    trace="".join(traceback.format_exception(error)),
                    where=f"sample {int(sample['sample_id'])}",
                ) from error
        return sample


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
        whole[number][tuple(slice(size) for size in item.shape)] = item
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


def _checked(sample: Any) -> Sample:
    if not isinstance(sample, dict) or "sample_id" not in sample:
        raise TypeError(f"it returned a {type(sample).__name__}, no dict with 'sample_id'")
    return sample


def _takes_generator(transform: SampleTransform) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False


def _name(transform: SampleTransform) -> str:
    named = transform if inspect.isroutine(transform) else type(transform)
    return getattr(named, "__qualname__", repr(named))
