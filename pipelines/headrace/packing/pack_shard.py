"""Packs one shard: the function that workers run. The same samples give the same bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from headrace.errors import StepError
from headrace.packing import statistics
from headrace.packing.packed import DatasetFolder, PackedShard, ShardTask, packed_before
from headrace.packing.plan import LABEL, PlannedShard
from headrace.packing.read_samples import SamplesRead, read_samples
from headrace.shards.writer import ShardWriter
from headrace.storage.atomic import read_record, write_record
from headrace.storage.manifest import FieldInfo, ShardInfo
from headrace.storage.room import told_when_full


def pack_shard(task: ShardTask) -> PackedShard:
    """Pack one shard, unless a verified one is there.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StorageFullError: The dataset's storage is full; nothing half-written is left.
    """
    folder = DatasetFolder(Path(task.target))
    done = packed_before(folder, task.file, task.pack_key)
    if done is not None:
        return done
    plan = read_record(folder.plan_file(task.file), PlannedShard)
    if plan is None:
        raise StepError(f"The plan {folder.plan_file(task.file)} is missing", "Pack again.")
    read = read_samples(Path(task.source), plan.samples, task.fields[0], task.example)
    shard = _write(folder, task, plan, read) if read.positions else None
    packed = _record(task, plan, read, shard)
    with told_when_full(folder.parts, len(packed.model_dump_json())):
        write_record(folder.record_file(task.file), packed)
    return packed


def _write(
    folder: DatasetFolder, task: ShardTask, plan: PlannedShard, read: SamplesRead
) -> ShardInfo:
    kept = [plan.samples[position] for position in read.positions]
    sample_ids = np.array(read.positions, dtype=np.int64) + plan.first_sample_id
    writer = ShardWriter(plan.split, sample_ids, [sample.path for sample in kept])
    info = task.fields[0]
    if read.fixed is not None:
        writer.add_fixed(info.name, read.fixed)
    else:
        writer.add_ragged(info.name, read.ragged)
    if LABEL in task.fields:
        writer.add_fixed(LABEL.name, np.array([sample.label for sample in kept], dtype=np.int64))
    written = writer.publish(folder.path / plan.file)
    return ShardInfo(
        file=plan.file,
        split=plan.split,
        num_samples=len(kept),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
    )


def _record(
    task: ShardTask, plan: PlannedShard, read: SamplesRead, shard: ShardInfo | None
) -> PackedShard:
    labels = (plan.samples[position].label for position in read.positions)
    class_counts = Counter(label for label in labels if label is not None)
    moments = statistics.moments(read.fixed) if read.fixed is not None else None
    info: FieldInfo = task.fields[0]
    return PackedShard(
        pack_key=task.pack_key,
        shard=shard,
        statistics={info.name: moments} if moments is not None else {},
        class_counts=dict(sorted(class_counts.items())),
        encodings=tuple(sorted(read.encodings)),
        quarantined=tuple(read.quarantined),
        num_planned=len(plan.samples),
    )
