"""Callables `sample -> sample` that recipes name in `data.sample_transforms`."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.errors import HeadraceError, UserCodeError

Sample = dict[str, Any]
"""Fields of one sample by name: tensors, text as `str`; and `sample_id () int64`."""

SampleTransform = Callable[..., Sample]
"""Takes a sample, and `generator` when it has a parameter of that name."""


class SampleChain:
    """Applies transforms to single samples, in order.

    Args:
        transforms: What to apply.
    """

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
