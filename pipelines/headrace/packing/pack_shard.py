"""Packs one shard: the function that workers run. The same samples give the same bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from headrace.errors import StepError
from headrace.packing.batches import blocks_of
from headrace.packing.blocks import Gatherer
from headrace.packing.packed import DatasetFolder, PackedShard, ShardTask, is_intact, recorded
from headrace.packing.plan import PlannedShard
from headrace.packing.sources.open import open_source
from headrace.packing.target import is_sent, send_shard
from headrace.shards.columns import Expected
from headrace.shards.writer import ShardBuilder
from headrace.storage.atomic import read_record, write_text
from headrace.storage.manifest import ShardInfo
from headrace.storage.room import told_when_full


def pack_shard(task: ShardTask) -> PackedShard:
    """Pack one shard, unless a verified one is there.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StorageFullError: The dataset's storage is full; nothing half-written is left.
        StoreError: S3 kept failing.
    """
    folder = DatasetFolder(Path(task.target))
    done = recorded(folder, task.file, task.pack_key)
    if done is not None and (done.shard is None or _is_there(folder, task, done.shard)):
        return done
    plan = read_record(folder.plan_file(task.file), PlannedShard)
    if plan is None:
        raise StepError(f"The plan {folder.plan_file(task.file)} is missing", "Pack again.")
    packed = _pack(folder, task, plan)
    if task.url is not None and packed.shard is not None:
        send_shard(folder, task.url, task.access.s3, task.file)
    text = packed.model_dump_json()
    with told_when_full(folder.parts, len(text)):
        write_text(folder.record_file(task.file), text)
    return packed


def _is_there(folder: DatasetFolder, task: ShardTask, shard: ShardInfo) -> bool:
    if task.url is not None:
        return is_sent(task.url, task.access.s3, shard)
    return is_intact(folder.path, shard)


def _pack(folder: DatasetFolder, task: ShardTask, plan: PlannedShard) -> PackedShard:
    refs = plan.samples()
    source = open_source(task.dataset, task.access, task.source_fields)
    gatherer = Gatherer(task, plan)
    expected = Expected(
        num_samples=len(refs),
        source_bytes=len("".join(plan.paths).encode()),
        first_bytes=sum(plan.sizes),
    )
    shard: ShardInfo | None = None
    with ShardBuilder(folder.path / plan.file, plan.split, task.fields, expected) as builder:
        for block in blocks_of(source, refs, gatherer):
            builder.add(block)
        if len(builder):
            written = builder.finish()
            shard = ShardInfo(
                file=plan.file,
                split=plan.split,
                num_samples=len(builder),
                num_bytes=written.num_bytes,
                xxh3_128=written.xxh3_128,
                fold=plan.fold,
            )
    tally = gatherer.tally
    return PackedShard(
        pack_key=task.pack_key,
        shard=shard,
        statistics=gatherer.moments(),
        lengths=tally.lengths,
        class_counts=dict(sorted(Counter(tally.labels).items())),
        encodings={name: tuple(sorted(met)) for name, met in tally.encodings.items()},
        quarantined=tuple(tally.quarantined),
        num_planned=len(refs),
    )
