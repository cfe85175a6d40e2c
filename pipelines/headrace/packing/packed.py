"""Records of packed shards, and the manifest that is made of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from headrace.errors import DataError, StepError
from headrace.files.atomic import read_record
from headrace.files.manifest import (
    FieldInfo,
    FieldStatistics,
    LengthStatistics,
    Manifest,
    Quarantined,
    ShardInfo,
)
from headrace.files.manifest_file import content_fingerprint
from headrace.packing import statistics
from headrace.packing.plan import PackPlan
from headrace.packing.statistics import Moments
from headrace.packing.target import DatasetFolder
from headrace.recipe.dataset import TRAIN
from headrace.record import Record

logger = logging.getLogger(__name__)

_NUM_SHOWN = 5


class PackedShard(Record):
    """Written once a shard is whole; the manifest is merged from these."""

    pack_key: str
    """Identity of the packing it belongs to."""
    shard: ShardInfo | None
    """The shard; null when none of its samples could be read."""
    statistics: dict[str, Moments]
    """Moments of the fixed fields."""
    lengths: dict[str, LengthStatistics] = {}
    """Sizes of the samples of ragged fields."""
    class_counts: dict[int, int]
    """Samples by class index."""
    encodings: dict[str, tuple[str, ...]]
    """Encodings met in fields that stay encoded, sorted."""
    quarantined: tuple[Quarantined, ...]
    """Samples left out, with reasons."""
    num_planned: int
    """Samples the shard was to hold."""


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
    """The manifest of a dataset whose shards are all packed.

    Raises:
        DataError: No sample of some split could be read.
    """
    shards = tuple(part.shard for part in packed if part.shard is not None)
    quarantined = tuple(sample for part in packed for sample in part.quarantined)
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
        folds=_folds(shards),
        shards=shards,
        statistics=_statistics(plan, training),
        lengths=_lengths(plan, training),
        class_counts=_class_counts(plan, packed),
        quarantined=quarantined,
        provenance=provenance,
    )


def check_quarantine(manifest: Manifest, max_share: float) -> None:
    """Refuse a dataset of which too many samples could not be read."""
    num_bad = len(manifest.quarantined)
    total = num_bad + manifest.num_samples
    if num_bad > max_share * total:
        raise DataError(
            f"{num_bad:,} of {total:,} samples cannot be read, more than the share of "
            f"{max_share:g} that pack.max_quarantined allows: {describe(manifest.quarantined)}",
            "Repair or remove these files, or raise pack.max_quarantined.",
        )


def describe(quarantined: Sequence[Quarantined]) -> str:
    """The first samples that were left out, with reasons."""
    shown = "; ".join(f"{item.path}: {item.reason}" for item in quarantined[:_NUM_SHOWN])
    more = len(quarantined) - _NUM_SHOWN
    return shown + (f"; and {more:,} more" if more > 0 else "")


def _with_encoding(info: FieldInfo, packed: Sequence[PackedShard]) -> FieldInfo:
    met = {encoding for part in packed for encoding in part.encodings.get(info.name, ())}
    if len(met) != 1:
        return info
    return FieldInfo.model_validate({**info.model_dump(), "encoding": met.pop()})


def _folds(shards: Sequence[ShardInfo]) -> dict[str, tuple[int, ...]]:
    counts: dict[str, Counter[int]] = {}
    for shard in shards:
        if shard.fold is not None:
            counts.setdefault(shard.split, Counter())[shard.fold] += shard.num_samples
    return {
        split: tuple(counted[fold] for fold in range(max(counted) + 1))
        for split, counted in counts.items()
    }


def _statistics(plan: PackPlan, packed: Sequence[PackedShard]) -> dict[str, FieldStatistics]:
    found: dict[str, FieldStatistics] = {}
    for info in plan.fields:
        parts = [part.statistics[info.name] for part in packed if info.name in part.statistics]
        merged = statistics.merge(parts)
        if merged is not None:
            found[info.name] = statistics.finish(merged, plan.every.get(info.name, 1))
    return found


def _lengths(plan: PackPlan, packed: Sequence[PackedShard]) -> dict[str, LengthStatistics]:
    found: dict[str, LengthStatistics] = {}
    for info in plan.fields:
        parts = [part.lengths[info.name] for part in packed if info.name in part.lengths]
        if parts:
            found[info.name] = statistics.merge_lengths(parts)
    return found


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
