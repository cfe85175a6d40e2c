"""What packing will do: pure functions from files, labels and recipe to frozen records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import xxhash

from headrace.errors import RecipeError
from headrace.packing.decode import ARRAY_SUFFIXES, IMAGE_SUFFIXES
from headrace.packing.labels import Labels
from headrace.packing.sources import SourceFile
from headrace.packing.splits import assign_splits
from headrace.recipe.dataset import DatasetSpec, PackSpec
from headrace.shards.format import HEADER_BYTES
from headrace.storage.manifest import FORMAT_VERSION, FieldInfo, Record

MAX_SHARD_BYTES = 4 * 2**30
"""A worker holds a shard in memory, so that larger ones are refused."""

LABEL = FieldInfo(name="label", dtype="int64", layout="fixed")
"""The field of class indices."""

_FIXED_BYTES = 8 + 8 + 8  # label, sample_id, offset of the source path


class PlannedSample(Record):
    """One file on its way into a shard."""

    path: str
    """Path relative to the source folder."""
    num_bytes: int
    """Size when it was listed."""
    mtime_ns: int
    """Time of its content when it was listed, nanoseconds."""
    label: int | None
    """Class index; null without labels."""


class PlannedShard(Record):
    """One shard: which samples it holds, in which order."""

    file: str
    """Path relative to the dataset's folder, as in `shards/train-00000.h5`."""
    split: str
    """Split of all its samples."""
    first_sample_id: int
    """`sample_id` of the first sample; the others follow."""
    samples: tuple[PlannedSample, ...]
    """The samples."""
    num_bytes: int
    """Size of the file, estimated from above."""


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """All that packing will write."""

    name: str
    """Name of the dataset."""
    pack_key: str
    """Equal key, equal shards."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample, `label` (if any) last."""
    classes: tuple[str, ...]
    """Class names."""
    splits: tuple[str, ...]
    """Splits in order."""
    shards: tuple[PlannedShard, ...]
    """Shards in the order of sample ids."""

    @property
    def num_samples(self) -> int:
        """Samples to pack."""
        return sum(len(shard.samples) for shard in self.shards)


def pack_key(
    dataset: DatasetSpec, pack: PackSpec, files: Sequence[SourceFile], labels: Labels
) -> str:
    """Hash of everything that decides what the shards hold.

    Neither the dataset's name nor the place of the source folder count, nor how many quarantined
    samples are put up with.

    Returns:
        32 hexadecimal digits.
    """
    config = dataset.model_dump_json(include={"splits", "stratify", "split_seed"})
    packing = pack.model_dump_json(include={"images", "shard_bytes", "shard_samples"})
    state = xxhash.xxh3_128(f"{FORMAT_VERSION}\n{config}\n{packing}\n".encode())
    for name in labels.classes:
        state.update(f"{name!r}\n".encode())
    for index, file in enumerate(files):
        label = labels.indices[index] if labels.indices else None
        state.update(f"{file.path!r} {file.num_bytes} {file.mtime_ns} {label}\n".encode())
    return state.hexdigest()


def input_kind(files: Sequence[SourceFile]) -> str:
    """Whether the samples are of kind `image` or `array`; also the name of the input field.

    Raises:
        RecipeError: Files of both kinds, or of an unknown one.
    """
    firsts: dict[str, SourceFile] = {}
    for file in files:
        firsts.setdefault(PurePosixPath(file.path).suffix.lower(), file)
    for suffix, file in firsts.items():
        if suffix not in IMAGE_SUFFIXES + ARRAY_SUFFIXES:
            raise RecipeError(
                f"'{file.path}' matches dataset.include, but '{suffix}' files cannot be packed",
                f"Valid: {', '.join(IMAGE_SUFFIXES + ARRAY_SUFFIXES)}.",
            )
    images = [file for suffix, file in firsts.items() if suffix in IMAGE_SUFFIXES]
    arrays = [file for suffix, file in firsts.items() if suffix in ARRAY_SUFFIXES]
    if images and arrays:
        raise RecipeError(
            f"The source holds both images ('{images[0].path}') and arrays ('{arrays[0].path}')",
            "Narrow dataset.include to one kind.",
        )
    return "array" if arrays else "image"


def make_plan(
    dataset: DatasetSpec,
    pack: PackSpec,
    files: Sequence[SourceFile],
    labels: Labels,
    field: FieldInfo,
) -> PackPlan:
    """Lay out splits and shards.

    Args:
        dataset: How samples are split.
        pack: How large shards are.
        files: The samples, sorted by path.
        labels: Their labels.
        field: The input field, `image` or `array`.

    Raises:
        RecipeError: A split would be empty, or a shard would not fit a worker's memory.
    """
    stratify_by = labels.indices if dataset.stratify else ()
    paths = [file.path for file in files]
    splits = assign_splits(paths, stratify_by, dataset.splits, dataset.split_seed)
    _check_splits(dataset, splits, len(files))
    shards: list[PlannedShard] = []
    next_id = 0
    for split, indices in splits.items():
        samples = [_sample(files[index], labels, index) for index in indices]
        for number, part in enumerate(_cut(samples, pack, field)):
            shard = _shard(split, number, next_id, part, field)
            _check_size(shard)
            shards.append(shard)
            next_id += len(part)
    return PackPlan(
        name=dataset.name,
        pack_key=pack_key(dataset, pack, files, labels),
        fields=(field, LABEL) if labels.classes else (field,),
        classes=labels.classes,
        splits=tuple(splits),
        shards=tuple(shards),
    )


def _check_splits(
    dataset: DatasetSpec, splits: dict[str, tuple[int, ...]], num_samples: int
) -> None:
    for name, share in dataset.splits.items():
        if share > 0 and not splits[name]:
            raise RecipeError(
                f"Split '{name}' would be empty: {num_samples} samples at a share of {share:g}",
                "Raise its share in dataset.splits, or add samples.",
            )


def _sample(file: SourceFile, labels: Labels, index: int) -> PlannedSample:
    return PlannedSample(
        path=file.path,
        num_bytes=file.num_bytes,
        mtime_ns=file.mtime_ns,
        label=labels.indices[index] if labels.indices else None,
    )


def _cut(
    samples: Sequence[PlannedSample], pack: PackSpec, field: FieldInfo
) -> Iterator[tuple[PlannedSample, ...]]:
    limit = pack.shard_samples or len(samples)
    limit_bytes = math.inf if pack.shard_samples else float(pack.shard_bytes)
    part: list[PlannedSample] = []
    part_bytes = 0
    for sample in samples:
        size = _sample_bytes(sample, field)
        if part and (len(part) == limit or part_bytes + size > limit_bytes):
            yield tuple(part)
            part, part_bytes = [], 0
        part.append(sample)
        part_bytes += size
    if part:
        yield tuple(part)


def _shard(
    split: str,
    number: int,
    first_sample_id: int,
    samples: tuple[PlannedSample, ...],
    field: FieldInfo,
) -> PlannedShard:
    return PlannedShard(
        file=f"shards/{split}-{number:05d}.h5",
        split=split,
        first_sample_id=first_sample_id,
        samples=samples,
        num_bytes=HEADER_BYTES + sum(_sample_bytes(sample, field) for sample in samples),
    )


def _sample_bytes(sample: PlannedSample, field: FieldInfo) -> int:
    if field.layout == "ragged":
        size = sample.num_bytes + 8
    else:
        size = math.prod(field.shape) * np.dtype(field.dtype).itemsize
    return size + len(sample.path.encode()) + _FIXED_BYTES


def _check_size(shard: PlannedShard) -> None:
    if shard.num_bytes > MAX_SHARD_BYTES and len(shard.samples) > 1:
        raise RecipeError(
            f"{shard.file} would take {shard.num_bytes:,} bytes ({len(shard.samples):,} samples); "
            f"workers hold a shard in memory, so that {MAX_SHARD_BYTES:,} are the most",
            "Lower pack.shard_samples or pack.shard_bytes.",
        )
