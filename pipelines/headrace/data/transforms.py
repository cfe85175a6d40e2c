"""Callables `batch -> batch` for `data.transforms` and `data.augment` of recipes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from headrace.errors import DataError, UserError, blaming_user_code, nearest
from headrace.fields.field_kind import Kind, kind_of_encoding
from headrace.files.manifest import FieldInfo
from headrace.recipe.crop import CROPS_FIRST, Crop

Sample = dict[str, Any]
"""Fields of one sample by name: tensors, text as `str`; and `sample_id () int64`."""

SampleTransform = Callable[..., Sample]
"""Takes a sample, and `generator` if it has a parameter of that name."""

Batch = dict[str, Any]
"""Fields by name, and `sample_id (batch,) int64`.

Each is a tensor `(batch, *shape)`; fields that vary in shape by nature, such as text and arrays of
varying length, are lists of samples unless they are padded, see `collate`.
"""

Collate = Callable[[list[Sample]], Batch]
"""Forms a batch from samples, for users who do so themselves."""

SAMPLE_ID = "sample_id"

WHOLE = "_batch_"
"""Key of what the user's `collate` formed if that is not a dict; beside it: `sample_id`."""

SHAPE = "_shape"
"""Suffix of the field with the shapes of samples before they were padded."""

_SAMPLE_HINT = "data.sample_transforms take a sample, a dict of its fields, and return one."

Names = Callable[[], Sequence[str]]
"""Returns the names of a batch's samples, for errors."""


class SampleChain:
    """Applies transforms to single samples, in order."""

    def __init__(self, transforms: Sequence[SampleTransform]) -> None:
        self._steps = [(transform, _takes_generator(transform)) for transform in transforms]

    def __call__(self, sample: Sample, seed: int | None) -> Sample:
        """Apply them; `seed` is for the transforms' generator, None gives them no generator.

        Raises:
            UserCodeError: A transform raised, or did not return a sample.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for transform, takes_generator in self._steps:
            options = {"generator": generator} if takes_generator else {}
            where = f"sample {int(sample[SAMPLE_ID])}"
            with blaming_user_code(_name(transform), _SAMPLE_HINT, where):
                sample = _checked(transform(sample, **options))
        return sample


def varies(info: FieldInfo) -> bool:
    """Whether samples of a field may differ in shape within a batch."""
    return info.layout == "ragged" and kind_of_encoding(info.encoding).varies


def columns_of(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Return the values of each field; raise `DataError` if samples differ in fields."""
    for name in dict.fromkeys(name for sample in samples for name in sample):
        if any(name not in sample for sample in samples):
            raise DataError(
                f"Samples of one batch differ in fields: only some have '{name}'",
                "data.dataset and data.sample_transforms must give every sample the same fields.",
            )
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def collate(name: str, items: Sequence[Any], names: Names, *, pad: float | None) -> Batch:
    """Return one field of a batch, from its samples: arrays, tensors, numbers, or anything else.

    Arrays and numbers give `(batch, *shape)`, other things a list. With `pad`, arrays may differ in
    shape: they are padded to `(batch, *largest)`, with `<name>_shape (batch, ndim) int64`. `names`
    returns the names of the samples, for errors.

    Raises:
        DataError: Samples that must have one shape do not, or they differ in axes or dtype.
    """
    if not all(isinstance(item, Tensor | np.ndarray | np.generic | int | float) for item in items):
        return {name: list(items)}
    tensors = [torch.as_tensor(item) for item in items]
    if pad is None:
        _check_alike(name, tensors, names, lambda item: item.shape)
        return {name: torch.stack(tensors)}
    _check_alike(name, tensors, names, lambda item: item.ndim)
    return _filled(name, tensors, pad)


def collated(form: Collate, samples: list[Sample]) -> Batch:
    """Return the batch that a user's `form` makes of samples, with their ids.

    A batch that is not a dict becomes the value of `WHOLE`.

    Raises:
        UserCodeError: It raised, or returned nothing.
    """
    ids = torch.stack([torch.as_tensor(sample[SAMPLE_ID]) for sample in samples])
    hint = "data.collate takes a list of samples, each a dict, and returns a batch."
    with blaming_user_code(_name(form), hint, f"batch with sample {int(ids[0])}"):
        batch = form(samples)
        if batch is None:
            raise TypeError("it returned None, not a batch")
    return {**(batch if isinstance(batch, dict) else {WHOLE: batch}), SAMPLE_ID: ids}


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
            known = names()
            raise DataError(
                f"Field '{name}' of one batch holds {shown(items[0])} ({known[0]}) and "
                f"{shown(item)} ({known[number]})",
                "Samples of one dataset must have one shape: resize them before packing, or in "
                "data.sample_transforms; arrays of varying length are padded with data.pad.",
            )


def shown(value: Any) -> str:
    """Return the dtype and shape of a tensor, or the type of another value, for messages."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


def _checked(sample: Any) -> Sample:
    if not isinstance(sample, dict) or "sample_id" not in sample:
        raise TypeError(f"it returned a {type(sample).__name__}, not a dict with 'sample_id'")
    return sample


def _takes_generator(transform: SampleTransform) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False


def _name(transform: Callable[..., Any]) -> str:
    made = transform.func if isinstance(transform, partial) else transform
    named = made if inspect.isroutine(made) or isinstance(made, type) else type(made)
    return getattr(named, "__qualname__", repr(named))


Transform = Callable[[Batch], Batch]
"""Takes a batch on the model's device and returns a new one; the given one does not change."""


def _field(batch: Batch, name: str) -> Tensor:
    if name not in batch:
        raise DataError(f"A transform needs the missing field '{name}'", nearest(name, batch))
    values = batch[name]
    if not isinstance(values, Tensor):
        raise DataError(
            f"A transform needs the field '{name}', whose samples differ in shape: it is a list",
            "Set data.pad, or change samples one by one, in data.sample_transforms.",
        )
    return values


class ScaleToUnit:
    """Convert integers of `field` from 0 to `maximum` into floats from 0 to 1."""

    def __init__(self, field: str = "image", maximum: float = 255.0) -> None:
        self.field = field
        self.maximum = maximum

    def __call__(self, batch: Batch) -> Batch:
        """Scale."""
        values = _field(batch, self.field)
        return {**batch, self.field: values.to(torch.float32) / self.maximum}


class Normalize:
    """Subtract `mean` from `field` and divide by `std`: one, or one per channel (last axis)."""

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
    """Move channels of pictures in `field`, `(batch, height, width[, channels])`, to axis 1."""

    def __init__(self, field: str = "image") -> None:
        self.field = field

    def __call__(self, batch: Batch) -> Batch:
        """Move the channels of one field."""
        values = _field(batch, self.field)
        moved = values.unsqueeze(1) if values.ndim == 3 else values.movedim(-1, 1)
        return {**batch, self.field: moved.contiguous()}


class OnField:
    """Apply `transform`, a callable `tensor -> tensor` of any library, to each sample of `field`.

    As torchvision's transforms draw once a call, they get samples one by one; with `whole`, the
    batch, for transforms that draw nothing or draw for each sample by themselves.
    """

    def __init__(
        self, transform: Callable[[Tensor], Tensor], field: str = "image", *, whole: bool = False
    ) -> None:
        self.field, self.transform, self.whole = field, transform, whole

    def __call__(self, batch: Batch) -> Batch:
        """Transform one field."""
        values = _field(batch, self.field)
        if self.whole:
            return {**batch, self.field: self.transform(values)}
        return {**batch, self.field: torch.stack([self.transform(each) for each in values])}


class AddNoise:
    """Add Gaussian noise of deviation `std` to `field`, of a floating dtype: an augmentation."""

    def __init__(self, std: float, field: str = "image") -> None:
        self.field = field
        self.std = std

    def __call__(self, batch: Batch) -> Batch:
        """Add noise to one field."""
        values = _field(batch, self.field)
        return {**batch, self.field: values + self.std * torch.randn_like(values)}


class RandomResizedCrop(Crop):
    """Crop a random part of an encoded image at decoding, resize it, mirror some.

    The part is drawn as by torchvision; in validation and evaluation it is the central square. A
    field becomes `(size, size, 3) uint8`. It comes before all other sample transforms.

    Args: `size`, `scale`, `ratio`, `flip`, `field`, as of `headrace.recipe.crop.Crop`.
    """

    def __call__(self, sample: Sample) -> Sample:
        """Raise `UserError`: the sample is decoded already."""
        del sample
        raise UserError(f"RandomResizedCrop comes after '{self.field}' is decoded", CROPS_FIRST)

    def decode(
        self, seeds: Sequence[int] | None, kind: Kind, place: int, content: bytes
    ) -> NDArray[np.uint8]:
        """Return the part of an image, bytes `content` of a `kind`, by its seed, `seeds[place]`.

        Without `seeds` it is the central square. Raises `UnreadableError`.
        """
        random = None if seeds is None else Random(f"{seeds[place]} {self.field}")
        is_mirrored = random is not None and random.random() < self.flip
        pixels = kind.decode_part(content, partial(self.box, random), self.size)
        if pixels.ndim == 2:
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        # one image, contiguous, channels last: resized fast, and without further threads
        image = torch.from_numpy(np.array(pixels, order="C"))[None].permute(0, 3, 1, 2)
        image = interpolate(image, (self.size, self.size), mode="bilinear", antialias=True)
        array = np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())
        if is_mirrored:  # pixels are moved in one piece, which is faster
            array = array.view("V3")[:, ::-1].copy().view(np.uint8).reshape(array.shape)
        return array
