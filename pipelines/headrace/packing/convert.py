"""Values of a source to the bytes of a shard: kept as they are, or decoded and brought in shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.errors import DataError, UnreadableError
from headrace.fields.audio import audio_encoding, decode_audio
from headrace.fields.image import decode_image, image_encoding
from headrace.files.manifest import Quarantined
from headrace.packing.fields import FieldRule, first_rules, settled
from headrace.packing.samples import (
    SampleRef,
    Source,
    Unreadable,
    Value,
    Values,
)
from headrace.recipe.dataset import PackSpec
from headrace.shards.placing import Buffer

NUM_TRIED = 100
"""Samples of which one must be readable, so that shapes and dtypes are known."""

_NUM_SHOWN = 5
_ZEROS = 32  # zero crossings of the filter that resamples sound, on either side
_BETA = 8.0  # of its Kaiser window: what does not fit is 80 dB down


@dataclass
class FieldColumn:
    """One field of a block of samples."""

    items: list[Buffer] = field(default_factory=list)
    """Bytes of each sample."""
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Its shape, in a ragged field of arrays."""
    encodings: set[str] = field(default_factory=set)
    """Encodings met, of values that stay encoded."""
    joined: memoryview | None = None
    """The bytes of all samples, where these lie one after the other in memory that is used again
    for the next block."""


class Converter:
    """Converts the values of one field."""

    def __init__(self, rule: FieldRule) -> None:
        self.rule = rule
        self.to_array: Callable[[Value], NDArray[Any]] | None = None
        self._dtype = np.dtype(rule.info.dtype)
        if rule.decode:
            decoders = {"image": self._image, "audio": self._audio, "array": self._array}
            self.to_array = decoders[rule.kind]

    def add(self, path: str, value: Value, column: FieldColumn) -> None:
        """Convert one value.

        Raises:
            UnreadableError: It is damaged; the column is as before.
            DataError: It has another shape or dtype than the example.
        """
        if self.to_array is None:
            column.items.append(self._kept(value, column))
            return
        array = self.to_array(value)
        if self.rule.example and not self.fits(array):
            raise self._misfit(path, array)
        column.items.append(_as_buffer(array))
        if self.rule.info.ndim is not None:
            column.shapes.append(array.shape)

    def fits(self, array: NDArray[Any]) -> bool:
        """Whether an array has the shape and dtype of the example."""
        info = self.rule.info
        ragged = info.layout == "ragged"
        return array.dtype == self._dtype and (
            array.ndim == info.ndim if ragged else array.shape == info.shape
        )

    def _kept(self, value: Value, column: FieldColumn) -> Buffer:
        kind = self.rule.kind
        if kind == "text":
            return str(value).encode()
        if kind == "value":
            return _scalar(value, self.rule.info.dtype)
        content = cast("bytes", value)
        if kind in ("image", "audio"):
            encoding_of = image_encoding if kind == "image" else audio_encoding
            column.encodings.add(encoding_of(content, check=self.rule.check))
        return content

    def _image(self, value: Value) -> NDArray[Any]:
        rule = self.rule
        pixels = _with_channels(decode_image(cast("bytes", value)), rule.options.channels)
        if rule.resize is not None and pixels.shape[:2] != rule.resize:
            height, width = rule.resize
            resampling = Image.Resampling[rule.options.filter.upper()]
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), resampling))
        return _as_dtype(pixels, rule.options.dtype)

    def _audio(self, value: Value) -> NDArray[Any]:
        rule = self.rule
        sound, rate = decode_audio(cast("bytes", value))
        target, kept = rule.options.sample_rate, rule.info.sample_rate
        if target is None and kept is not None and rate != kept:
            raise DataError(
                f"A sound has {rate:,} samples a second, '{rule.example}' has {kept:,}",
                f"Set pack.fields.{rule.info.name}.sample_rate.",
            )
        return _as_dtype(resampled(sound, rate, target or rate), rule.options.dtype)

    def _array(self, value: Value) -> NDArray[Any]:
        return _as_dtype(np.asarray(value), self.rule.options.dtype)

    def _misfit(self, path: str, array: NDArray[Any]) -> DataError:
        info = self.rule.info
        expected = f"{info.ndim} axes" if info.layout == "ragged" else str(info.shape)
        return DataError(
            f"'{path}' has shape {array.shape} {array.dtype}, '{self.rule.example}' has {expected} "
            f"{info.dtype}",
            self._way_out(array),
        )

    def _way_out(self, array: NDArray[Any]) -> str:
        info = self.rule.info
        name = info.name
        if self.rule.kind == "image":
            if array.ndim != (info.ndim or len(info.shape)):
                return (
                    f"Some images are grey and some are not: set pack.fields.{name}.channels to 1 "
                    f"or 3, or pack.fields.{name}.keep to 'encoded'."
                )
            return (
                f"Make all of equal size, set pack.fields.{name}.resize or "
                f"pack.fields.{name}.mixed, or set pack.fields.{name}.keep to 'encoded'."
            )
        if array.dtype.name != info.dtype:
            return f"Make all of equal dtype, or set pack.fields.{name}.dtype."
        if self.rule.kind == "audio":
            return (
                "Some sounds have one channel and some several: make all of equally many, or set "
                f"pack.fields.{name}.keep to 'encoded'."
            )
        if info.layout == "ragged":
            return "Make all of equally many axes."
        return f"Make all of equal shape, or set pack.fields.{name}.mixed to 'ragged'."


def field_rules(
    name: str, source: Source, refs: Sequence[SampleRef], pack: PackSpec
) -> tuple[FieldRule, ...]:
    """How each field is kept, shapes taken from the first sample that can be read.

    Returns:
        Rules in the order of the source's fields, but `label` last.
    """
    rules = sorted(first_rules(source.fields, pack), key=lambda rule: rule.info.name == "label")
    bad: list[Quarantined] = []
    for ref in refs[:NUM_TRIED]:
        (values,) = source.read([ref])  # one by one: the first one is mostly all that is needed
        if isinstance(values, Unreadable):
            bad.append(Quarantined(path=ref.path, reason=values.reason))
            continue
        try:
            return tuple(_settled(rule, ref, values) for rule in rules)
        except UnreadableError as error:
            bad.append(Quarantined(path=ref.path, reason=str(error)))
    raise DataError(
        f"None of the first {len(bad)} files in {name} can be read: {describe(bad)}",
        "Repair or remove these files, or narrow dataset.include.",
    )


def describe(quarantined: Sequence[Quarantined]) -> str:
    """The first samples that were left out, with reasons."""
    shown = "; ".join(f"{item.path}: {item.reason}" for item in quarantined[:_NUM_SHOWN])
    more = len(quarantined) - _NUM_SHOWN
    return shown + (f"; and {more:,} more" if more > 0 else "")


def _settled(rule: FieldRule, ref: SampleRef, values: Values) -> FieldRule:
    value = values[rule.info.name]
    converter, column = Converter(rule), FieldColumn()
    converter.add(ref.path, value, column)
    if converter.to_array is None:
        return settled(rule, None, ref.path, len(column.items[0]), None)
    num_bytes = len(value) if isinstance(value, bytes) else int(getattr(value, "nbytes", 0))
    rate = None
    if rule.kind == "audio":
        rate = rule.options.sample_rate or decode_audio(cast("bytes", value))[1]
    return settled(rule, converter.to_array(value), ref.path, num_bytes, rate)


def resampled(sound: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """Sound with so many samples a second, by a polyphase filter.

    Args:
        sound: `(num_frames,)` or `(num_frames, num_channels)`.
        rate: Its samples a second.
        target: Those to have.
    """
    if rate == target or not len(sound):
        return sound
    from scipy.signal import resample_poly

    divisor = math.gcd(rate, target)
    up, down = target // divisor, rate // divisor
    out = resample_poly(sound, up, down, axis=0, window=_filter(max(up, down)))
    return np.asarray(out, dtype=np.float32)


@lru_cache(maxsize=8)
def _filter(factor: int) -> NDArray[np.float32]:
    """Weights that pass one `factor`-th of the frequencies, `(2 * _ZEROS * factor + 1,)`."""
    from scipy.signal import firwin

    taps = firwin(2 * _ZEROS * factor + 1, 1 / factor, window=("kaiser", _BETA))
    return np.asarray(taps, dtype=np.float32)


def _as_buffer(array: NDArray[Any]) -> Buffer:
    """Bytes of an array in C order and little-endian; shared with it, where that is so."""
    if not array.size:
        return b""
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data


def _as_dtype(array: NDArray[Any], dtype: str | None) -> NDArray[Any]:
    if dtype is None or array.dtype == np.dtype(dtype):
        return array
    target = np.dtype(dtype)
    if array.dtype.kind == "c":
        raise UnreadableError(f"complex numbers do not fit {dtype}")
    if target.kind in "iu" and array.size and not np.can_cast(array.dtype, target):
        limits = np.iinfo(target)
        low, high = array.min(), array.max()
        if not (np.isfinite(low) and np.isfinite(high)) or low < limits.min or high > limits.max:
            raise UnreadableError(f"values from {low} to {high} do not fit {dtype}")
    return array.astype(target)


def _with_channels(pixels: NDArray[np.uint8], channels: int | None) -> NDArray[np.uint8]:
    if channels == 1 and pixels.ndim == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))
    if channels == 3 and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return pixels


def _scalar(value: Value, dtype: str) -> bytes:
    try:
        return np.asarray(value, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableError(f"{value!r} does not fit {dtype}: {error}") from error
