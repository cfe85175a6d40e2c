"""Packs one shard, the function that workers run, and makes the manifest of all that are packed.

The same samples give the same bytes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import JsonValue

from headrace.errors import DataError, StepError
from headrace.files.atomic import read_record, write_text
from headrace.files.machine import told_when_full
from headrace.files.manifest import FieldInfo, LengthStatistics, Manifest, Quarantined, ShardInfo
from headrace.files.manifest_file import content_fingerprint
from headrace.packing import statistics
from headrace.packing.blocks import BlockCollector
from headrace.packing.fields import FieldRule, describe
from headrace.packing.packing_plan import PackPlan, PlannedShard
from headrace.packing.reading import noted
from headrace.packing.samples import Access, Fields
from headrace.packing.sources.open import open_source
from headrace.packing.statistics import Moments
from headrace.packing.target import DatasetFolder, PackTarget
from headrace.recipe.dataset import TRAIN, DatasetSpec
from headrace.record import Record
from headrace.shards.columns import ExpectedSizes
from headrace.shards.writer import ShardBuilder

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PackTask:
    """What a worker is given; it reads the samples' list from the dataset's folder."""

    dataset: DatasetSpec
    access: Access
    source_fields: Fields
    rules: tuple[FieldRule, ...]
    fields: tuple[FieldInfo, ...]
    target: PackTarget
    file: str
    """The shard, relative to the dataset's folder."""
    pack_key: str


class PackTasks(Sequence[PackTask]):
    """Tasks of shards; workers are busy with the first while the plans of others are written."""

    def __init__(self, pattern: PackTask, shards: Sequence[PlannedShard]) -> None:
        self._pattern = pattern
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: Any) -> Any:
        """A task, by its number, once the plan of its shard is on the disk."""
        shard, folder = self._shards[index], self._pattern.target.folder
        shard.write(folder.plan_file(shard.file), folder.record_file(shard.file))
        return replace(self._pattern, file=shard.file)


class PackedShard(Record):
    """Written once a shard is whole; the manifest is merged from these."""

    pack_key: str
    shard: ShardInfo | None
    """The shard; null when none of its samples could be read."""
    statistics: dict[str, Moments]
    """Moments of the fixed fields."""
    lengths: dict[str, LengthStatistics] = {}
    """Sizes of the samples of ragged fields."""
    class_counts: dict[int, int]
    encodings: dict[str, tuple[str, ...]]
    """Encodings met in fields that stay encoded, sorted."""
    changes: dict[str, dict[str, int]] = {}
    """Samples by field and by what differs from their files."""
    quarantined: tuple[Quarantined, ...]
    """Samples left out, with reasons."""
    num_planned: int


def pack_shard(task: PackTask) -> PackedShard:
    """Pack one shard, unless a verified one is there.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StorageFullError: The dataset's storage is full; nothing half-written is left.
        StoreError: S3 kept failing.
    """
    target, folder = task.target, task.target.folder
    done = recorded(folder, task.file, task.pack_key)
    if done is not None and (done.shard is None or target.has(done.shard)):
        return done
    packed: PackedShard = noted(_pack, task, folder.reading_file(task.file))
    if packed.shard is not None:
        target.send(task.file)
    text = packed.model_dump_json()
    with told_when_full(folder.parts, len(text)):
        write_text(folder.record_file(task.file), text)
    return packed


def _pack(task: PackTask) -> PackedShard:
    file = task.target.folder.plan_file(task.file)
    plan = PlannedShard.read(file)
    if plan is None:
        raise StepError(f"The plan {file} is missing", "Pack again.")
    source = open_source(task.dataset, task.access, task.source_fields)
    collector = BlockCollector(task.rules, plan)
    expected = ExpectedSizes(
        num_samples=plan.num_samples,
        source_bytes=int(plan.samples.path_lengths(in_bytes=True).sum()),
        first_bytes=int(plan.samples.numbers("bytes").sum()),
    )
    path = task.target.folder.path / plan.file
    with ShardBuilder(path, plan.split, task.fields, expected) as builder:
        for block in collector.blocks(source):
            builder.add(block)
        shard = None
        if len(builder):
            place: dict[str, Any] = {"file": plan.file, "split": plan.split, "fold": plan.fold}
            shard = ShardInfo(**place, **vars(builder.finish()), num_samples=len(builder))
    encodings = {name: tuple(sorted(met)) for name, met in collector.encodings.items()}
    return PackedShard(
        pack_key=task.pack_key,
        shard=shard,
        statistics=collector.moments(),
        lengths=collector.lengths,
        class_counts=dict(sorted(collector.class_counts.items())),
        encodings=encodings,
        changes={name: dict(counted) for name, counted in collector.changes.items() if counted},
        quarantined=tuple(collector.quarantined),
        num_planned=plan.num_samples,
    )


def recorded(folder: DatasetFolder, file: str, pack_key: str) -> PackedShard | None:
    """The record of a shard; None when it is to be packed."""
    record_file = folder.record_file(file)
    try:
        packed = read_record(record_file, PackedShard)
    except StepError:
        logger.warning("%s is damaged; its shard is packed again", record_file)
        return None
    return packed if packed is not None and packed.pack_key == pack_key else None


def merge(
    plan: PackPlan, packed: Sequence[PackedShard], provenance: dict[str, JsonValue]
) -> Manifest:
    """The manifest of a dataset whose shards are all packed."""
    shards = tuple(part.shard for part in packed if part.shard is not None)
    quarantined = (
        *plan.quarantined, *(sample for part in packed for sample in part.quarantined),
    )  # fmt: skip
    splits = dict.fromkeys(plan.splits, 0)
    for shard in shards:
        splits[shard.split] += shard.num_samples
    for split in dict.fromkeys(shard.split for shard in plan.shards):
        if not splits[split]:
            raise DataError(
                f"No sample of split '{split}' can be read: {describe(quarantined)}",
                "Repair or remove these files.",
            )
    fields = tuple(_with_encoding(info, packed) for info in plan.fields)
    pairs = zip(plan.shards, packed, strict=True)
    training = [part for shard, part in pairs if shard.split == TRAIN] or packed
    return Manifest(
        name=plan.name,
        fingerprint=content_fingerprint(fields, plan.classes, shards),
        pack_key=plan.pack_key,
        fields=fields,
        classes=plan.classes,
        splits=splits,
        folds=folds_in(shards),
        shards=shards,
        statistics={
            name: statistics.finish(merged, plan.every.get(name, 1))
            for name, parts in _by_field(plan, (part.statistics for part in training)).items()
            if (merged := statistics.merge(parts))
        },
        lengths={
            name: statistics.merge_lengths(parts)
            for name, parts in _by_field(plan, (part.lengths for part in training)).items()
        },
        class_counts=_class_counts(plan, packed),
        quarantined=quarantined,
        notes=(*plan.notes, *_changes(packed)),
        provenance=provenance,
    )


def check_quarantine(manifest: Manifest, max_share: float) -> None:
    """Refuse a dataset if too many samples could not be read."""
    num_bad = len(manifest.quarantined)
    total = num_bad + manifest.num_samples
    if num_bad > max_share * total:
        raise DataError(
            f"{num_bad:,} of {total:,} samples cannot be read, more than the share of "
            f"{max_share:g} that pack.max_quarantined allows: {describe(manifest.quarantined)}",
            "Repair or remove these files or rows, name what stands for missing values in "
            "dataset.missing, or raise pack.max_quarantined.",
        )


def _with_encoding(info: FieldInfo, packed: Sequence[PackedShard]) -> FieldInfo:
    met = {encoding for part in packed for encoding in part.encodings.get(info.name, ())}
    if len(met) != 1:
        return info
    return FieldInfo.model_validate({**info.model_dump(), "encoding": met.pop()})


def folds_in(shards: Sequence[ShardInfo | PlannedShard]) -> dict[str, tuple[int, ...]]:
    """Return the samples of each fold by split, for splits that have folds."""
    counts: dict[str, Counter[int]] = {}
    for shard in shards:
        if shard.fold is not None:
            counts.setdefault(shard.split, Counter())[shard.fold] += shard.num_samples
    return {
        split: tuple(counted[fold] for fold in range(max(counted) + 1))
        for split, counted in counts.items()
    }


def _by_field(plan: PackPlan, parts: Iterable[Mapping[str, T]]) -> dict[str, list[T]]:
    """What shards say of each field, by its name, where any does."""
    every = list(parts)
    found = {info.name: [p[info.name] for p in every if info.name in p] for info in plan.fields}
    return {name: each for name, each in found.items() if each}


def _changes(packed: Sequence[PackedShard]) -> list[str]:
    counts = Counter[tuple[str, str]]()
    for part in packed:
        for name, changes in part.changes.items():
            counts.update({(name, change): count for change, count in changes.items()})
    return [
        f"{name}: {change} ({count:,} samples)" for (name, change), count in sorted(counts.items())
    ]


def _class_counts(plan: PackPlan, packed: Sequence[PackedShard]) -> dict[str, dict[str, int]]:
    if not plan.classes:
        return {}
    counts: dict[str, Counter[int]] = {split: Counter() for split in plan.splits}
    for shard, part in zip(plan.shards, packed, strict=True):
        counts[shard.split].update(part.class_counts)
    return {
        split: {name: counted[index] for index, name in enumerate(plan.classes)}
        for split, counted in counts.items()
    }
