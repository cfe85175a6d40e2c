"""Samples of a dataset, one at a time: the content of each field, for people."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, ShardError, UnknownNameError, UserError, nearest
from headrace.fields.field_kind import kind_of_encoding
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import FILE_NAME, read_manifest
from headrace.record import Record
from headrace.shards.chunks import read_rows
from headrace.shards.format import FIELDS_GROUP, MEND
from headrace.shards.reader import ShardReader
from headrace_pages.drawn import Drawn, drawn

MOST_LETTERS = 10_000
"""Most letters of a text that are sent."""
MOST_BYTES = 2**28
"""Most bytes of an encoded or compressed field of a sample that are decoded."""

_LABEL = "label"


class SampleQuestion(Record):
    """Request for a sample."""

    folder: str = ""
    """Folder of the dataset."""
    fingerprint: str = ""
    """Fingerprint of its content."""
    split: str
    index: int
    """Place in the split, from 0."""
    label: int | None = None
    """Only samples of this class: the first from `index` on."""
    is_back: bool = False
    """Whether to search towards the beginning."""
    frame: int = 0
    """Number of the picture, in a field with several."""


class FieldOfSample(Record):
    """The content of a field of a sample."""

    name: str
    text: str | None
    """Text, or the name of a class; null for other fields."""
    drawn: Drawn | None
    """Numbers; null for texts."""
    problem: str
    """Why neither is shown; else empty."""


class Sample(Record):
    """One sample."""

    split: str
    num_samples: int
    """Of the split."""
    index: int
    source: str
    """The file that it was packed from, or its position in one."""
    shard: str
    """The file that holds it."""
    fields: tuple[FieldOfSample, ...]


def read_sample(question: SampleQuestion) -> Sample:
    """Read a sample; of large fields only the shown part.

    Raises:
        UnknownNameError: The split or the sample does not exist.
        ManifestError: The folder has another content by now.
        ShardError: Its shard is missing or damaged.
    """
    manifest = _manifest(question)
    if question.split not in manifest.splits:
        raise UnknownNameError(
            f"The dataset has no split '{question.split}'", nearest(question.split, manifest.splits)
        )
    shards = manifest.shards_of(question.split)
    index = _sought(manifest, shards, question)
    ends = np.cumsum([shard.num_samples for shard in shards])
    number = int(np.searchsorted(ends, index, side="right"))
    shard, at = shards[number], index - int(ends[number]) + shards[number].num_samples
    reader = _reader(question, shard)
    fields = (_field(manifest, reader, info, at, question.frame) for info in manifest.fields)
    return Sample(
        split=question.split,
        num_samples=manifest.splits[question.split],
        index=index,
        source=reader.sources([at])[0],
        shard=shard.file,
        fields=tuple(fields),
    )


def _manifest(question: SampleQuestion) -> Manifest:
    folder = Path(question.folder)
    try:
        found = (folder / FILE_NAME).stat()
    except FileNotFoundError:
        return read_manifest(folder)  # raises with the reason
    manifest = _parsed(folder, found.st_mtime_ns, found.st_size)
    if manifest.fingerprint != question.fingerprint:
        what = f"{folder} now holds another content, not {question.fingerprint}"
        raise DataError(what, "Reload the page of the dataset.")
    return manifest


@lru_cache(maxsize=8)
def _parsed(folder: Path, _changed_ns: int, _num_bytes: int) -> Manifest:
    return read_manifest(folder)


def _sought(manifest: Manifest, shards: Sequence[ShardInfo], question: SampleQuestion) -> int:
    """Return the position in the split of the requested sample."""
    split, index, last = question.split, question.index, manifest.splits[question.split] - 1
    if not 0 <= index <= last:
        what = f"Split '{split}' has {last + 1:,} samples, no sample {index:,}"
        raise UnknownNameError(what, f"Valid numbers are 0 to {last:,}.")
    if question.label is None:
        return index
    starts = itertools.accumulate((shard.num_samples for shard in shards), initial=0)
    placed = [*zip(starts, shards, strict=False)]
    for first, shard in reversed(placed) if question.is_back else placed:
        if first > index if question.is_back else first + shard.num_samples <= index:
            continue
        places = np.flatnonzero(_reader(question, shard).fixed(_LABEL) == question.label) + first
        fit = places[places <= index][::-1] if question.is_back else places[places >= index]
        if len(fit):
            return int(fit[0])
    where = "up to" if question.is_back else "from"
    what = f"Split '{split}' has no sample of this class {where} sample {index:,}"
    raise UnknownNameError(what, "Search in the other direction, or choose another class.")


def _reader(question: SampleQuestion, shard: ShardInfo) -> ShardReader:
    path = Path(question.folder, shard.file)
    if not path.exists() or path.stat().st_size != shard.num_bytes:
        raise ShardError(f"{path} is missing, or not {shard.num_bytes:,} bytes long", MEND)
    return ShardReader(path)


def _field(
    manifest: Manifest, reader: ShardReader, info: FieldInfo, at: int, frame: int
) -> FieldOfSample:
    text = shown = None
    try:
        stored = _stored(reader, info, at)
        kind = kind_of_encoding(info.encoding)
        if kind.is_text:
            text = _shortened(stored.tobytes().decode(errors="replace"))
        else:
            is_sound = kind.is_wave or info.sample_rate is not None
            values, rate = kind.to_picture(_decoded(reader, info, at, stored)), info.sample_rate
            shown = drawn(values, frame, is_sound=is_sound, sample_rate=rate)
    except (DataError, UserError) as error:
        return FieldOfSample(name=info.name, text=None, drawn=None, problem=str(error))
    if info.name == _LABEL and manifest.classes and 0 <= stored < len(manifest.classes):
        text = manifest.classes[int(stored)]
    return FieldOfSample(name=info.name, text=text, drawn=shown, problem="")


def _stored(reader: ShardReader, info: FieldInfo, at: int) -> NDArray[Any]:
    """Return the content of the shard: of a ragged field its bytes; mapped if not compressed."""
    key = f"{FIELDS_GROUP}/{info.name}"
    if info.layout == "ragged":
        reader.check_offsets(key)
        data, offsets = reader.ragged(info.name)
        content = data[offsets[at] : offsets[at + 1]]
        _check_size(0 if info.encoding == "raw" else content.nbytes)
        return content
    place = reader.place(key)
    if not place.chunk_rows:
        return np.asarray(reader.array(key)[at])
    _check_size(place.chunk_rows * place.num_bytes // place.shape[0])
    return np.asarray(read_rows(reader.path, key, np.array([at]))[0])


def _check_size(num_bytes: int) -> None:
    if num_bytes > MOST_BYTES:
        what = f"{num_bytes:,} bytes are too many to decode for a view"
        raise DataError(what, f"At most {MOST_BYTES:,} bytes are decoded.")


def _decoded(reader: ShardReader, info: FieldInfo, at: int, stored: NDArray[Any]) -> NDArray[Any]:
    if info.layout == "fixed":
        return stored
    if info.encoding != "raw":
        return np.asarray(
            kind_of_encoding(info.encoding, info.orientation).decode(stored.tobytes())
        )
    shapes, dtype = reader.shapes(info.name), np.dtype(info.dtype)
    count = stored.nbytes // dtype.itemsize
    shape = (count,) if shapes is None else tuple(shapes[at].tolist())
    if math.prod(shape) * dtype.itemsize != stored.nbytes:
        raise ShardError(f"Bytes and shape of '{info.name}' do not fit each other", MEND)
    return stored.view(dtype).reshape(shape)


def _shortened(text: str) -> str:
    more = len(text) - MOST_LETTERS
    return f"{text[:MOST_LETTERS]}\n… and {more:,} more letters" if more > 0 else text
