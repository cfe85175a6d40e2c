"""Values of a source to the bytes of a shard: kept as they are, or decoded and brought in shape."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.errors import DataError
from headrace.packing.decode import UnreadableError, check_image, decode_image
from headrace.packing.fields import FieldRule
from headrace.packing.resample import resampled
from headrace.packing.samples import Value
from headrace.shards.placing import Buffer

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_IMAGE_MAGIC = (
    (b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpeg"), (b"BM", "bmp"), (b"RIFF", "webp"),
    (b"GIF8", "gif"), (b"II*\0", "tiff"), (b"MM\0*", "tiff"),
)  # fmt: skip
_AUDIO_MAGIC = ((b"RIFF", "wav"), (b"fLaC", "flac"))
_IMAGE_TABLE = {magic[:2]: (magic, encoding) for magic, encoding in _IMAGE_MAGIC}
_AUDIO_TABLE = {magic[:2]: (magic, encoding) for magic, encoding in _AUDIO_MAGIC}


@dataclass
class Column:
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
    """Converts the values of one field.

    Args:
        rule: How it is kept.
    """

    def __init__(self, rule: FieldRule) -> None:
        self.rule = rule
        self.to_array: Callable[[Value], NDArray[Any]] | None = None
        self._dtype = np.dtype(rule.info.dtype)
        if rule.decode:
            self.to_array = _DECODERS[rule.kind](rule)

    def add(self, path: str, value: Value, column: Column) -> None:
        """Convert one value.

        Raises:
            UnreadableError: It is damaged; the column is as before.
            DataError: It has another shape or dtype than the example.
        """
        if self.to_array is not None:
            array = self.to_array(value)
            self._check(path, array)
            column.items.append(as_buffer(array))
            if self.rule.info.ndim is not None:
                column.shapes.append(array.shape)
            return
        column.items.append(self._kept(value, column))

    def _kept(self, value: Value, column: Column) -> Buffer:
        kind = self.rule.kind
        if kind == "text":
            return str(value).encode()
        if kind == "value":
            return _scalar(value, self.rule.info.dtype)
        content = cast("bytes", value)
        if kind in _CHECKS:
            column.encodings.add(_CHECKS[kind](content, self.rule.check))
        return content

    def fits(self, array: NDArray[Any]) -> bool:
        """Whether an array has the shape and dtype of the example."""
        info = self.rule.info
        ragged = info.layout == "ragged"
        return array.dtype == self._dtype and (
            array.ndim == info.ndim if ragged else array.shape == info.shape
        )

    def _check(self, path: str, array: NDArray[Any]) -> None:
        info, example = self.rule.info, self.rule.example
        if not example or self.fits(array):
            return
        expected = f"{info.ndim} axes" if info.layout == "ragged" else str(info.shape)
        raise DataError(
            f"'{path}' has shape {array.shape} {array.dtype}, '{example}' has {expected} "
            f"{info.dtype}",
            self._way_out(array),
        )

    def _way_out(self, array: NDArray[Any]) -> str:
        name, ndim = self.rule.info.name, self.rule.info.ndim or len(self.rule.info.shape)
        if self.rule.kind == "image":
            if array.ndim != ndim:
                return (
                    f"Some images are grey and some are not: set pack.fields.{name}.channels to 1 "
                    f"or 3, or pack.images to 'encoded'."
                )
            return (
                f"Make all of equal size, set pack.fields.{name}.resize or "
                f"pack.fields.{name}.mixed, or set pack.images to 'encoded'."
            )
        if array.dtype.name != self.rule.info.dtype:
            return f"Make all of equal dtype, or set pack.fields.{name}.dtype."
        return f"Make all of equal shape, or set pack.fields.{name}.mixed to 'ragged'."


def as_buffer(array: NDArray[Any]) -> Buffer:
    """Bytes of an array in C order and little-endian; shared with it, where that is so."""
    if not array.size:
        return b""
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data


def as_dtype(array: NDArray[Any], dtype: str | None) -> NDArray[Any]:
    """The array with elements of another dtype.

    Raises:
        UnreadableError: There are elements that do not fit.
    """
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


def _scalar(value: Value, dtype: str) -> bytes:
    try:
        return np.asarray(value, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableError(f"{value!r} does not fit {dtype}: {error}") from error


def _image_decoder(rule: FieldRule) -> Callable[[Value], NDArray[Any]]:
    options = rule.options

    def decode(value: Value) -> NDArray[Any]:
        pixels = decode_image(cast("bytes", value))
        pixels = _with_channels(pixels, options.channels)
        if rule.resize is not None and pixels.shape[:2] != rule.resize:
            height, width = rule.resize
            image = Image.fromarray(pixels).resize((width, height), _FILTERS[options.filter])
            pixels = np.asarray(image)
        return as_dtype(pixels, options.dtype)

    return decode


def _with_channels(pixels: NDArray[np.uint8], channels: int | None) -> NDArray[np.uint8]:
    if channels == 1 and pixels.ndim == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))
    if channels == 3 and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return pixels


def _audio_decoder(rule: FieldRule) -> Callable[[Value], NDArray[Any]]:
    def decode(value: Value) -> NDArray[Any]:
        sound, rate = decode_audio(cast("bytes", value))
        target, kept = rule.options.sample_rate, rule.info.sample_rate
        if target is None and kept is not None and rate != kept:
            raise DataError(
                f"A sound has {rate:,} samples a second, '{rule.example}' has {kept:,}",
                f"Set pack.fields.{rule.info.name}.sample_rate.",
            )
        return as_dtype(resampled(sound, rate, target or rate), rule.options.dtype)

    return decode


def decode_audio(content: bytes) -> tuple[NDArray[np.float32], int]:
    """Sound of a WAV or FLAC file.

    Returns:
        `(num_frames,)`, or `(num_frames, num_channels)` when there are several, from -1 to 1, and
        the samples a second.

    Raises:
        UnreadableError: Empty or damaged.
    """
    import soundfile

    try:
        sound, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise UnreadableError(f"damaged sound: {error}") from error
    return sound, int(rate)


def _array_decoder(rule: FieldRule) -> Callable[[Value], NDArray[Any]]:
    return lambda value: as_dtype(np.asarray(value), rule.options.dtype)


def _image_encoding(content: bytes, check: bool) -> str:
    return check_image(content) if check else _told(content, _IMAGE_TABLE, "image")


def _audio_encoding(content: bytes, check: bool) -> str:
    encoding = _told(content, _AUDIO_TABLE, "sound")
    if check:
        decode_audio(content)
    return encoding


def _told(content: bytes, table: Mapping[bytes, tuple[bytes, str]], what: str) -> str:
    magic, encoding = table.get(content[:2], (b"", ""))
    if magic and content.startswith(magic):
        return encoding
    if not content:
        raise UnreadableError("the file is empty")
    names = ", ".join(sorted({encoding for _, encoding in table.values()}))
    raise UnreadableError(f"no {what} by its first bytes; valid: {names}")


_DECODERS: dict[str, Callable[[FieldRule], Callable[[Value], NDArray[Any]]]] = {
    "image": _image_decoder,
    "audio": _audio_decoder,
    "array": _array_decoder,
}
_CHECKS: dict[str, Callable[[bytes, bool], str]] = {
    "image": _image_encoding,
    "audio": _audio_encoding,
}
