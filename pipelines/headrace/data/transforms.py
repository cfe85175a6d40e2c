"""Callables `batch -> batch` that recipes name in `data.transforms` and `data.augment`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from headrace.data.samples import Batch
from headrace.errors import DataError, nearest

Transform = Callable[[Batch], Batch]
"""Takes a batch on the model's device and gives another one; the one given does not change."""


def apply(transforms: Iterable[Transform], batch: Batch) -> Batch:
    """Apply transforms in order."""
    for transform in transforms:
        batch = transform(batch)
    return batch


def _field(batch: Batch, name: str) -> Tensor:
    if name not in batch:
        raise DataError(f"A transform asks for the field '{name}'", nearest(name, batch))
    values = batch[name]
    if not isinstance(values, Tensor):
        raise DataError(
            f"A transform asks for the field '{name}', whose samples differ in shape: it is a list",
            "Set data.pad, or change samples one by one, in data.sample_transforms.",
        )
    return values


class ScaleToUnit:
    """Integers from 0 to `maximum` become floats from 0 to 1.

    Args:
        field: Field to change.
        maximum: Value that becomes 1.
    """

    def __init__(self, field: str = "image", maximum: float = 255.0) -> None:
        self.field = field
        self.maximum = maximum

    def __call__(self, batch: Batch) -> Batch:
        """Scale one field."""
        values = _field(batch, self.field)
        return {**batch, self.field: values.to(torch.float32) / self.maximum}


class Normalize:
    """Subtract a mean and divide by a standard deviation, one each or one a channel.

    Args:
        mean: Mean; several are for the last axis.
        std: Standard deviation, as `mean`.
        field: Field to change.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], field: str = "image"
    ) -> None:
        self.field = field
        self.mean = torch.tensor(mean, dtype=torch.float32)
        self.std = torch.tensor(std, dtype=torch.float32)

    def __call__(self, batch: Batch) -> Batch:
        """Normalise one field."""
        values = _field(batch, self.field).to(torch.float32)
        mean, std = self.mean.to(values.device), self.std.to(values.device)
        return {**batch, self.field: (values - mean) / std}


class ChannelsFirst:
    """Pictures `(batch, height, width[, channels])` become `(batch, channels, height, width)`.

    Args:
        field: Field to change.
    """

    def __init__(self, field: str = "image") -> None:
        self.field = field

    def __call__(self, batch: Batch) -> Batch:
        """Move the channels of one field."""
        values = _field(batch, self.field)
        moved = values.unsqueeze(1) if values.ndim == 3 else values.movedim(-1, 1)
        return {**batch, self.field: moved.contiguous()}


class AddNoise:
    """Add Gaussian noise: an augmentation.

    Args:
        std: Standard deviation of the noise.
        field: Field to change, of a floating dtype.
    """

    def __init__(self, std: float, field: str = "image") -> None:
        self.field = field
        self.std = std

    def __call__(self, batch: Batch) -> Batch:
        """Add noise to one field."""
        values = _field(batch, self.field)
        return {**batch, self.field: values + self.std * torch.randn_like(values)}
