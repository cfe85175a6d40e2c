"""Adds what is new in a source to a dataset packed before: new shards, and the next manifest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from headrace.errors import DataError, ManifestError, NoDatasetError, StepError
from headrace.files.atomic import read_record
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.packing.division import SourceListing, with_classes
from headrace.packing.pack_shard import PackedShard
from headrace.packing.packing_plan import FirstNumbers, PackPlan, PlannedShard, division_key
from headrace.packing.sample_table import SampleTable, narrow, shown
from headrace.packing.target import PackTarget, packed_dataset
from headrace.recipe.dataset import DatasetSpec

logger = logging.getLogger(__name__)

SETTINGS = "settings"
"""Key of the provenance: hash of the settings that a dataset was packed with."""

DIVISION = "division"
"""Key of the provenance: hash of the options of splits; absent if `pack.max_samples` is set."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A dataset that samples are added to."""

    location: str
    manifest: Manifest
    planned: tuple[PlannedShard, ...]
    """Plans of its shards, in the order of the manifest."""
    packed: tuple[PackedShard, ...]

    def compared(self, listing: SourceListing, *, keeps: bool) -> SourceListing:
        """Return a listing with the places of its samples in the dataset, if it has any of them."""
        packed = pa.chunked_array([plan.samples.paths for plan in self.planned])
        places = [(plan.split, plan.fold) for plan in self.planned]
        earlier = tuple(dict.fromkeys(places))
        lengths = [plan.num_samples for plan in self.planned]
        numbers = pa.array(np.repeat([earlier.index(place) for place in places], lengths))
        at = pc.index_in(listing.samples.paths, packed.combine_chunks())
        if at.null_count == len(at):
            return listing
        samples = listing.samples.with_columns(earlier=narrow(numbers.take(at)))
        return replace(listing, samples=samples, earlier=earlier, keeps=keeps)

    def first_numbers(self) -> FirstNumbers:
        """Numbers that new samples and shards begin with."""
        next_shard: dict[str, int] = {}
        for shard in self.planned:
            next_shard[shard.split] = next_shard.get(shard.split, 0) + 1
        next_id = max(shard.first_sample_id + shard.num_samples for shard in self.planned)
        every = {name: found.every for name, found in self.manifest.statistics.items()}
        return FirstNumbers(sample_id=next_id, shard=next_shard, every=every)


def find_base(
    target: PackTarget, name: str, key: tuple[str, str], *, anew: bool = False
) -> tuple[PackTarget | None, tuple[str, ...]]:
    """The dataset of that name with the most versions beside a new one; None for none.

    Its provenance has the `key` with that value; with `anew` another value will do, too, but not
    the dataset itself. Those of that name whose manifests are damaged are passed over with a
    warning: the second item.
    """
    found: list[tuple[bool, int, int, str, PackTarget]] = []
    warnings: list[str] = []
    for each in target.siblings(name):
        try:
            manifest = read_manifest_at(each.location, each.s3)
        except NoDatasetError:  # such as of a pack that was interrupted
            continue
        except ManifestError as error:
            if each.location != target.location:
                warnings.append(str(error))
                logger.warning("%s is passed over: %s", each.location, error)
            continue
        value = manifest.provenance.get(key[0])
        may_be = value and each.location != target.location if anew else value == key[1]
        if manifest.name == name and may_be:
            order = value == key[1], manifest.version, manifest.num_samples, each.location
            found.append((*order, each))
    return max(found, key=lambda one: one[:4])[4] if found else None, tuple(warnings)


def with_earlier(target: PackTarget, dataset: DatasetSpec, listing: SourceListing) -> SourceListing:
    """Return a listing with the places of its samples in an earlier dataset of its name, if any.

    Samples stay there if the options of splits are the same; a dataset with these comes first.
    """
    key = division_key(dataset)
    found, _ = find_base(target, dataset.name, (DIVISION, key), anew=True)
    if found is None:
        return listing
    try:
        base = read_base(found)
    except (DataError, StepError) as error:
        note = f"samples were divided without regard to an earlier dataset: {error}"
        return replace(listing, notes=(*listing.notes, note))
    return base.compared(listing, keeps=base.manifest.provenance[DIVISION] == key)


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


def extending(base: Base, listing: SourceListing) -> SourceListing:
    """A listing with the places of its samples in the dataset, and with the classes of both.

    Raises:
        DataError: Packed samples or their classes have changed; with groups also: are gone.
    """
    classes = tuple(dict.fromkeys((*base.manifest.classes, *listing.classes)))  # the new come last
    listing = replace(listing, samples=with_classes(listing.samples, classes))
    packed = pa.concat_tables([_as_table(plan.samples) for plan in base.planned])
    found = _as_table(listing.samples)
    at = pc.index_in(found["path"], packed["path"].combine_chunks())
    was, now = packed.take(pc.drop_null(at)), found.filter(at.is_valid())
    pairs = (pc.equal(now[name], was[name]) for name in ("size", "version", "class"))
    same = reduce(pc.and_, pairs)
    changed = now.filter(pc.invert(same))["path"].to_pylist()
    if listing.samples.has("group"):  # those of samples that are gone are unknown
        is_gone = pc.invert(pc.is_in(packed["path"], found["path"]))
        changed += packed["path"].filter(is_gone).to_pylist()
    if changed:
        raise DataError(
            f"{len(changed):,} samples changed since they were packed into {base.location}: "
            f"{shown(changed)}",
            "Shards that are there do not change; pack without pack.append.",
        )
    return replace(base.compared(listing, keeps=True), appends=True)


def _as_table(samples: SampleTable) -> Any:
    """Path, size, version and class index of samples as a table of Arrow's."""
    versions, label = samples.column("version").cast("large_string"), samples.column("label")
    index = samples.column("class_index") if label is None else label.indices
    size = samples.numbers("bytes")
    index = np.zeros(len(size), np.int64) if index is None else index.cast("int64").fill_null(-1)
    return pa.table({"path": samples.paths, "size": size, "version": versions, "class": index})


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
