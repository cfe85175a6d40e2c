"""Packs one shard: the function that workers run. The same samples give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from headrace.errors import StepError
from headrace.files.atomic import read_record, write_text
from headrace.files.machine import told_when_full
from headrace.files.manifest import FieldInfo, ShardInfo
from headrace.packing.blocks import BlockCollector
from headrace.packing.fields import FieldRule
from headrace.packing.packed import PackedShard, recorded
from headrace.packing.plan import PlannedShard
from headrace.packing.samples import Access, Fields
from headrace.packing.sources.open import open_source
from headrace.packing.target import PackTarget
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.columns import Expected
from headrace.shards.writer import ShardBuilder


@dataclass(frozen=True, kw_only=True)
class PackTask:
    """What a worker is given; it reads the samples' list from the dataset's folder."""

    dataset: DatasetSpec
    """The source, settled."""
    access: Access
    """What the site allows the source."""
    source_fields: Fields
    """Fields that the listing found."""
    rules: tuple[FieldRule, ...]
    """How each is kept."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample in the shard."""
    target: PackTarget
    """Where the dataset is put."""
    file: str
    """The shard, relative to the dataset's folder."""
    pack_key: str
    """Identity of the whole packing."""


class PackTasks(Sequence[PackTask]):
    """Tasks of shards; workers are busy with the first while the plans of others are written.

    Args:
        pattern: A task, `file` left out.
        shards: The plans of the shards.
    """

    def __init__(self, pattern: PackTask, shards: Sequence[PlannedShard]) -> None:
        self._pattern = pattern
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> PackTask: ...

    @overload
    def __getitem__(self, index: slice) -> PackTasks: ...

    def __getitem__(self, index: int | slice) -> PackTask | PackTasks:
        """A task, once the plan of its shard is on the disk.

        Raises:
            StorageFullError: There is no room for the plan.
        """
        if isinstance(index, slice):
            return PackTasks(self._pattern, self._shards[index])
        shard, folder = self._shards[index], self._pattern.target.folder
        text = shard.model_dump_json()
        with told_when_full(folder.parts, len(text)):
            write_text(folder.plan_file(shard.file), text)
        return replace(self._pattern, file=shard.file)


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
    plan = read_record(folder.plan_file(task.file), PlannedShard)
    if plan is None:
        raise StepError(f"The plan {folder.plan_file(task.file)} is missing", "Pack again.")
    packed = _pack(task, plan)
    if packed.shard is not None:
        target.send(task.file)
    text = packed.model_dump_json()
    with told_when_full(folder.parts, len(text)):
        write_text(folder.record_file(task.file), text)
    return packed


def _pack(task: PackTask, plan: PlannedShard) -> PackedShard:
    source = open_source(task.dataset, task.access, task.source_fields)
    collector = BlockCollector(task.rules, plan)
    expected = Expected(
        num_samples=plan.num_samples,
        source_bytes=len("".join(plan.paths).encode()),
        first_bytes=sum(plan.sizes),
    )
    path = task.target.folder.path / plan.file
    with ShardBuilder(path, plan.split, task.fields, expected) as builder:
        for block in collector.blocks(source):
            builder.add(block)
        shard = _finished(builder, plan) if len(builder) else None
    encodings = {name: tuple(sorted(met)) for name, met in collector.encodings.items()}
    return PackedShard(
        pack_key=task.pack_key,
        shard=shard,
        statistics=collector.moments(),
        lengths=collector.lengths,
        class_counts=dict(sorted(collector.class_counts.items())),
        encodings=encodings,
        quarantined=tuple(collector.quarantined),
        num_planned=plan.num_samples,
    )


def _finished(builder: ShardBuilder, plan: PlannedShard) -> ShardInfo:
    written = builder.finish()
    return ShardInfo(
        file=plan.file,
        split=plan.split,
        num_samples=len(builder),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
        fold=plan.fold,
    )
