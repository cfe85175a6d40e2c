"""Adds what is new in a source to a dataset packed before: new shards, and the next manifest."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from headrace.errors import DataError, ManifestError, NoDatasetError
from headrace.files.atomic import read_record
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.packing.division import Divided, SourceListing, with_classes
from headrace.packing.pack_shard import PackedShard
from headrace.packing.packing_plan import FirstNumbers, PackPlan, PlannedShard
from headrace.packing.sample_table import SampleTable, shown
from headrace.packing.target import PackTarget, packed_dataset

logger = logging.getLogger(__name__)

SETTINGS = "settings"
"""Key of the provenance: hash of the settings that a dataset was packed with."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A dataset that samples are added to."""

    location: str
    manifest: Manifest
    planned: tuple[PlannedShard, ...]
    """Plans of its shards, in the order of the manifest."""
    packed: tuple[PackedShard, ...]

    def example(self, listed: SampleTable) -> SampleTable:
        """Return one of its samples, with which others are compared; none if it is not listed."""
        known = self.planned[0].samples[0].path
        at = bisect_left(listed, known, key=lambda ref: ref.path)
        found: SampleTable = listed[at : at + 1]
        return found if found.paths.to_pylist() == [known] else SampleTable(found.table[:0])

    def first_numbers(self, listing: SourceListing) -> FirstNumbers:
        """Numbers that new samples and shards begin with, and the division of earlier samples."""
        next_shard: dict[str, int] = {}
        for shard in self.planned:
            next_shard[shard.split] = next_shard.get(shard.split, 0) + 1
        next_id = max(shard.first_sample_id + shard.num_samples for shard in self.planned)
        every = {name: found.every for name, found in self.manifest.statistics.items()}
        divided = self._divided(listing.samples)
        return FirstNumbers(sample_id=next_id, shard=next_shard, every=every, divided=divided)

    def _divided(self, samples: SampleTable) -> Divided:
        """Return the division of its samples; `samples` are listed now, with their groups.

        Raises:
            DataError: The group of an earlier sample is unknown, or is in several splits; or the
                source gives an earlier sample another split.
        """
        splits, folds = Counter[str](), Counter[str]()
        for shard in self.planned:
            splits[shard.split] += shard.num_samples
            if shard.fold is not None:
                folds[str(shard.fold)] += shard.num_samples
        group, given = samples.column("group"), samples.column("split")
        groups: dict[str, tuple[str, int | None]] = {}
        problems: list[str] = []
        for shard in self.planned if group is not None or given is not None else ():
            paths = shard.samples.paths
            at = pc.index_in(paths, samples.paths)
            if given is not None:
                now = given.cast("large_string").take(at)
                moved = pc.and_(at.is_valid(), pc.not_equal(now, shard.split))
                problems += paths.filter(moved).to_pylist()
            if group is not None and (given is None or shard.fold is not None):
                problems += paths.filter(at.is_null()).to_pylist()
                place = shard.split, shard.fold
                names = group.cast("large_string").take(at).unique().drop_null().to_pylist()
                problems += [f"group {n!r}" for n in names if groups.setdefault(n, place) != place]
        if problems:
            raise DataError(
                f"The splits of {self.location} cannot be kept. Gone from the source, or with "
                f"another split or group there: {shown(problems)}",
                "Samples stay in their splits; pack without pack.append, which makes a new "
                "dataset.",
            )
        return Divided(splits=splits, folds=folds, groups=groups)


def find_base(
    target: PackTarget, name: str, settings: str
) -> tuple[PackTarget | None, tuple[str, ...]]:
    """The dataset of that name and settings with the most versions beside a new one; None for none.

    Those of that name whose manifests are damaged are passed over with a warning: the second item.
    """
    found: list[tuple[int, int, str, PackTarget]] = []
    warnings: list[str] = []
    for each in target.siblings(name):
        try:
            manifest = read_manifest_at(each.location, each.s3)
        except NoDatasetError:  # such as of a pack that was interrupted
            continue
        except ManifestError as error:
            if each.location != target.location:
                warnings.append(str(error))
                logger.warning("Nothing is added to %s: %s", each.location, error)
            continue
        if manifest.name == name and manifest.provenance.get(SETTINGS) == settings:
            found.append((manifest.version, manifest.num_samples, each.location, each))
    return max(found, key=lambda one: one[:3])[3] if found else None, tuple(warnings)


def read_base(target: PackTarget) -> Base:
    """What is known of a dataset that is whole."""
    folder = target.folder
    plans = [PlannedShard.read(path) for path in folder.parts.glob("*.plan.arrow")]
    manifest = packed_dataset(target.location, target.s3)
    order = {split: number for number, split in enumerate(manifest.splits)}
    planned = [plan for plan in plans if plan is not None and plan.split in order]
    planned.sort(key=lambda plan: (order[plan.split], plan.file))
    records = [read_record(folder.record_file(plan.file), PackedShard) for plan in planned]
    known = {shard.file for shard in manifest.shards}
    every = [(plan, record) for plan, record in zip(planned, records, strict=True) if record]
    keys = {record.pack_key for plan, record in every if plan.file in known}
    pairs = [  # and no remains of an appending that was given up
        (plan, record)
        for plan, record in every
        if (record.pack_key in keys if record.shard is None else plan.file in known)
    ]
    if known - {plan.file for plan, _ in pairs}:
        raise DataError(
            f"Nothing can be added to {target.location}: {folder.parts} does not tell what its "
            "shards hold",
            "Pack without pack.append, which makes a new dataset.",
        )
    return Base(
        location=target.location,
        manifest=manifest,
        planned=tuple(plan for plan, _ in pairs),
        packed=tuple(record for _, record in pairs),
    )


def new_samples(base: Base, listing: SourceListing) -> SourceListing:
    """The samples of a listing that the dataset does not have."""
    plans = [plan.samples for plan in base.planned]
    packed = pa.concat_tables(list(map(_as_table, plans)))
    found = _as_table(listing.samples)
    at = pc.index_in(found["path"], packed["path"].combine_chunks())
    was, now = packed.take(pc.drop_null(at)), found.filter(at.is_valid())
    same = pc.and_(*(pc.equal(now[name], was[name]) for name in ("size", "version")))
    changed = now.filter(pc.invert(same))["path"].to_pylist()
    if changed:
        raise DataError(
            f"{len(changed):,} samples changed since they were packed into {base.location}: "
            f"{shown(changed)}",
            "Shards that are there do not change; pack without pack.append.",
        )
    samples = listing.samples.take(np.flatnonzero(at.is_null()))
    classes = tuple(dict.fromkeys((*base.manifest.classes, *listing.classes)))  # the new come last
    return replace(listing, samples=with_classes(samples, classes))


def _as_table(samples: SampleTable) -> Any:
    """Path, size and version of samples as a table of Arrow's."""
    versions = samples.column("version").cast("large_string")
    return pa.table({"path": samples.paths, "size": samples.numbers("bytes"), "version": versions})


def check_fields(base: Base, plan: PackPlan) -> None:
    """Make sure that new shards hold the same fields."""
    ours = [info.model_copy(update={"encoding": "raw"}) for info in base.manifest.fields]
    theirs = [info.model_copy(update={"encoding": "raw"}) for info in plan.fields]
    for one, other in zip_longest(ours, theirs):
        if one != other:
            raise DataError(
                f"The dataset {base.location} has a field {one}, the new samples {other}",
                "Pack without pack.append, which makes a new dataset.",
            )


def together(
    base: Base, plan: PackPlan, packed: Sequence[PackedShard]
) -> tuple[PackPlan, list[PackedShard]]:
    """Plan and records of the old and the new shards, split after split."""
    splits = tuple(dict.fromkeys((*base.manifest.splits, *plan.splits)))
    old, new = zip(base.planned, base.packed, strict=True), zip(plan.shards, packed, strict=True)
    pairs = sorted((*old, *new), key=lambda pair: splits.index(pair[0].split))
    whole = replace(plan, splits=splits, shards=tuple(shard for shard, _ in pairs))
    return whole, [record for _, record in pairs]
