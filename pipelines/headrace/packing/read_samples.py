"""Reads the samples of a shard into arrays, and sets aside what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError
from headrace.packing.decode import UnreadableError, check_image, decode_array, decode_image
from headrace.packing.plan import PlannedSample
from headrace.packing.sources import SourceFile
from headrace.storage.manifest import FieldInfo, Quarantined

_ENCODED_HINT = "Make all of equal size, or set pack.images to 'encoded'."
_ARRAY_HINT = "Make all of equal shape and dtype, or set pack.images to 'encoded'."


@dataclass
class SamplesRead:
    """Samples of a shard; lists are in the order of the shard."""

    positions: list[int] = field(default_factory=list)
    """Place of each readable sample in the plan."""
    fixed: NDArray[Any] | None = None
    """Samples `(num_readable, *shape)` of a fixed input."""
    ragged: list[bytes] = field(default_factory=list)
    """Samples of a ragged input."""
    encodings: set[str] = field(default_factory=set)
    """Encodings of a ragged input."""
    quarantined: list[Quarantined] = field(default_factory=list)
    """Samples left out, with reasons."""


def read_samples(
    source: Path, samples: Sequence[PlannedSample], info: FieldInfo, example: str
) -> SamplesRead:
    """Read samples; those that cannot be decoded are listed, not raised.

    Args:
        source: The source folder.
        samples: Files to read.
        info: The input field.
        example: Sample that `info.shape` was taken from, for messages.

    Raises:
        DataError: A file changed since it was listed, or has another shape or dtype than `info`.
        OSError: The storage failed.
    """
    read = SamplesRead()
    if info.layout == "ragged":
        accept = _into_list(read, info)
    else:
        accept = _into_array(read, len(samples), info, example)
    for position, sample in enumerate(samples):
        try:
            accept(sample, read_file(source, sample))
            read.positions.append(position)
        except UnreadableError as error:
            read.quarantined.append(Quarantined(path=sample.path, reason=str(error)))
    if read.fixed is not None:
        read.fixed = read.fixed[: len(read.positions)]
    return read


def read_file(source: Path, sample: PlannedSample | SourceFile) -> bytes:
    """Bytes of a source file.

    Raises:
        UnreadableError: It may not be read.
        DataError: It changed since it was listed.
    """
    path = source / sample.path
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except FileNotFoundError:
        raise _changed(path, "is gone") from None
    except PermissionError as error:
        raise UnreadableError(f"it may not be read: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (sample.num_bytes, sample.mtime_ns):
        raise _changed(path, "was written to")
    return content


def decode(kind: str, content: bytes) -> NDArray[Any]:
    """Array of a sample of kind `image` or `array`.

    Raises:
        UnreadableError: The bytes are damaged.
    """
    return decode_array(content) if kind == "array" else decode_image(content)


def _changed(path: Path, how: str) -> DataError:
    return DataError(
        f"{path} {how} since the source folder was listed",
        "Pack again when nothing writes to the source folder any more.",
    )


Accept = Callable[[PlannedSample, bytes], None]


def _into_list(read: SamplesRead, info: FieldInfo) -> Accept:
    def accept(_: PlannedSample, content: bytes) -> None:
        if info.name == "array":
            decode_array(content)
            read.encodings.add("npy")
        else:
            read.encodings.add(check_image(content))
        read.ragged.append(content)

    return accept


def _into_array(read: SamplesRead, num_samples: int, info: FieldInfo, example: str) -> Accept:
    dtype = np.dtype(info.dtype)
    rows = read.fixed = np.empty((num_samples, *info.shape), dtype=dtype)

    def accept(sample: PlannedSample, content: bytes) -> None:
        values = decode(info.name, content)
        if values.shape != info.shape or values.dtype != dtype:
            raise DataError(
                f"'{sample.path}' has shape {values.shape} {values.dtype}, "
                f"'{example}' has {info.shape} {dtype}",
                _ARRAY_HINT if info.name == "array" else _ENCODED_HINT,
            )
        rows[len(read.positions)] = values

    return accept
