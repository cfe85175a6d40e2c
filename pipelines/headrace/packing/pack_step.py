"""The pack step: source folder to dataset folder, in parallel, resumed, never packed twice."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.clusters.fleet import Fleet
from headrace.clusters.node_calls import NodeCalls
from headrace.errors import StorageFullError, TargetFullError
from headrace.files.layout import LeaseFolder
from headrace.files.locks import exclusive_while
from headrace.files.machine import give_back_large_blocks, require_room
from headrace.files.manifest import Manifest
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.objects.store import is_remote, open_store
from headrace.packing.append import (
    DIVISION,
    SETTINGS,
    Base,
    check_fields,
    extending,
    find_base,
    read_base,
    together,
    with_earlier,
)
from headrace.packing.column_notes import note_texts
from headrace.packing.fields import NUM_TRIED, FieldRule, field_rules
from headrace.packing.opened_source import ListedSource, OpenedSource
from headrace.packing.pack_shard import (
    PackedShard,
    PackTask,
    PackTasks,
    check_quarantine,
    merge,
    pack_shard,
)
from headrace.packing.packing_plan import (
    PackPlan,
    PlannedShard,
    division_key,
    limited,
    make_plan,
    settings_key,
)
from headrace.packing.reading import noting, reading
from headrace.packing.target import PackTarget, packed_dataset
from headrace.shards.writer import remove_temporary
from headrace.steps.context import StepContext

logger = logging.getLogger(__name__)

_PACKAGES = ("headrace", "h5py", "numpy", "pillow")
_UNIT = "samples"
_WHEN_FULL = (
    "Free some space there, or name another place in pack.target, and run again: shards that are "
    "whole are kept."
)


OpenFleet = Callable[[LeaseFolder], AbstractContextManager[NodeCalls]]


def run(context: StepContext) -> dict[str, Any]:
    """Pack the recipe's dataset on the lease, or find it packed.

    Returns:
        `dataset` (folder or URL), `fingerprint`, `num_samples`, `num_shards`, `num_bytes`,
        `num_quarantined`, `reused` and the manifest's `notes`; `passed_over`: why datasets are not
        added to that `pack.append` may be about.

    Raises:
        RecipeError: Source folder, patterns or labels do not fit.
        DataError: Labels are wrong, shapes differ, or too many samples cannot be read.
        TargetFullError: The target, or the site's folder, has no room.
    """
    return pack(context, Fleet.open)


def pack(context: StepContext, open_fleet: OpenFleet) -> dict[str, Any]:
    """As `run`, on workers that the caller chooses."""
    give_back_large_blocks()  # a plan makes several columns of millions of samples
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps what is freed
    try:
        with noting(context.folder.reading):
            return _dataset(context, open_fleet)
    except StorageFullError as error:
        raise TargetFullError(error.what, _WHEN_FULL) from error


def _dataset(context: StepContext, open_fleet: OpenFleet) -> dict[str, Any]:
    spec, site = context.recipe.named_dataset, context.site
    if spec.path is not None:
        location = open_store(spec.path, site.s3).url
        return _outputs(location, packed_dataset(location, site.s3), reused=True)
    context.progress(0, None, _UNIT, "listing files")
    found = OpenedSource.of(context.recipe, site, context.check)
    known = found.known_target(site)
    if known is not None:
        return _ended(context, *known, reused=True)
    opened = found.listed(context.check)
    new = opened.new_target(site)
    base, warnings = _base(context, opened, new)
    target = new if base is None else base
    manifest, reused = target.reusable(opened.key), True
    if manifest is None:
        target.lock_file.parent.mkdir(parents=True, exist_ok=True)
        context.progress(0, None, _UNIT, "waiting for another pack of this dataset")
        with exclusive_while(target.lock_file, context.check):
            manifest = target.reusable(opened.key)
            if manifest is None:
                old, reused = None if base is None else read_base(base), False
                manifest = _packed(context, open_fleet, opened, target, old)
    if opened.sources_key:
        target.remember(opened.sources_key, manifest.pack_key)
    outputs = _ended(context, target, manifest, reused=reused)
    return {**outputs, "passed_over": list(warnings)} if warnings else outputs


def _ended(
    context: StepContext, target: PackTarget, manifest: Manifest, *, reused: bool
) -> dict[str, Any]:
    check_quarantine(manifest, context.recipe.pack.max_quarantined)
    context.progress(manifest.num_samples, manifest.num_samples, _UNIT, "packed")
    return _outputs(target.location, manifest, reused=reused)


def _base(
    context: StepContext, opened: ListedSource, target: PackTarget
) -> tuple[PackTarget | None, tuple[str, ...]]:
    """The dataset that samples are to be added to, None to make a new one; and warnings."""
    if not context.recipe.pack.append:
        return None, ()
    settings = settings_key(opened.dataset, context.recipe.pack, opened.listing.code)
    return find_base(target, context.recipe.named_dataset.name, (SETTINGS, settings))


def _packed(
    context: StepContext,
    open_fleet: OpenFleet,
    opened: ListedSource,
    target: PackTarget,
    base: Base | None,
) -> Manifest:
    """Pack a listing into a new dataset, or what is new of it into one that is there."""
    pack, listing = context.recipe.pack, opened.listing
    if base is None:
        listing, first, examples = with_earlier(target, opened.dataset, listing), None, None
    else:  # new samples have the form of the packed ones
        listing, first = extending(base, listing), base.first_numbers()
        examples = np.argsort(listing.earlier_index < 0, kind="stable")[:NUM_TRIED]
    tried = listing.samples if examples is None else listing.samples.take(examples)
    rules = field_rules(listing.source, opened.source, pack, tried)
    plan = make_plan(opened.dataset, pack, listing, rules, first, opened.key)
    if base is not None and not plan.shards:
        return base.manifest
    if pack.max_samples:
        plan = limited(plan, pack.max_samples)
    if base is not None:
        check_fields(base, plan)
    packed = _packed_shards(context, open_fleet, target, (opened, rules, plan))
    if base is None:
        return _published(context, target, merge(plan, packed, _provenance(context, opened)))
    manifest = merge(*together(base, plan, packed), _provenance(context, opened))
    target.keep(base.manifest)
    update = {"version": base.manifest.version + 1}
    return _published(context, target, manifest.model_copy(update=update))


def _packed_shards(
    context: StepContext,
    open_fleet: OpenFleet,
    target: PackTarget,
    work: tuple[ListedSource, tuple[FieldRule, ...], PackPlan],
) -> list[PackedShard]:
    opened, rules, plan = work
    to_do, source = prepare(plan, target), opened.listing.source
    packed: dict[int, PackedShard] = {}
    done, num_quarantined = 0, len(plan.quarantined)
    role = context.site.roles[context.recipe.packing_role]
    nodes = min(role.nodes, -(-len(plan.shards) // role.threads_per_node))
    context.usage = AttemptUsage(nodes=max(nodes, 1), cpus=float(nodes * role.cpus_per_node))
    reading("")
    with open_fleet(context.lease_folder) as fleet:
        context.progress(done, plan.num_samples, _UNIT, "packing")
        tasks = tasks_of(opened, rules, plan, target)
        for index, part in fleet.map(pack_shard, tasks, check=context.check, left_s=context.left_s):
            packed[index] = part
            done += part.num_planned
            num_quarantined += len(part.quarantined)
            if plan.shards[index].file in to_do:  # others were there from an earlier attempt
                context.usage = _with_shard(context.usage, part, plan.shards[index], source)
            context.progress(done, plan.num_samples, _UNIT, "packing")
            context.report(num_quarantined=num_quarantined)
    return [packed[index] for index in range(len(plan.shards))]


def _published(context: StepContext, target: PackTarget, manifest: Manifest) -> Manifest:
    check_quarantine(manifest, context.recipe.pack.max_quarantined)
    target.publish(manifest)
    logger.info("Packed %d samples into %s", manifest.num_samples, target.location)
    for note in note_texts(manifest.notes):
        logger.info(note)
    return manifest


def _with_shard(
    used: AttemptUsage, packed: PackedShard, planned: PlannedShard, source: str
) -> AttemptUsage:
    """What packing used, with one more shard."""
    more = {
        "samples": packed.num_planned - len(packed.quarantined),
        "stored_bytes": packed.shard.num_bytes if packed.shard else 0,
        "fetched_bytes": int(planned.samples.numbers("bytes").sum()) if is_remote(source) else 0,
    }
    return used.model_copy(update={k: (getattr(used, k) or 0) + more[k] for k in more})


def tasks_of(
    opened: ListedSource, rules: tuple[FieldRule, ...], plan: PackPlan, target: PackTarget
) -> PackTasks:
    """Return the tasks of a plan's shards."""
    pattern = PackTask(
        dataset=opened.dataset,
        access=opened.access,
        source_fields=tuple(opened.source.fields),
        rules=rules,
        fields=plan.fields,
        target=target,
        file="",
        pack_key=plan.pack_key,
    )
    return PackTasks(pattern, plan.shards)


def prepare(plan: PackPlan, target: PackTarget) -> set[str]:
    """Make the folders; return the files of the shards that are still to be packed."""
    folder = target.folder
    for each in (folder.shards, folder.parts):
        each.mkdir(parents=True, exist_ok=True)
    remove_temporary(folder.shards)
    waiting = [shard for shard in plan.shards if not folder.record_file(shard.file).exists()]
    sizes = [shard.num_bytes for shard in waiting]
    require_room(folder.path, sum(sizes) if target.url is None else max(sizes, default=0))
    return {shard.file for shard in waiting}


def _provenance(context: StepContext, opened: ListedSource) -> dict[str, Any]:
    is_whole = context.recipe.pack.max_samples is None
    return {
        **({DIVISION: division_key(opened.dataset)} if is_whole else {}),
        "source": opened.listing.source,
        SETTINGS: settings_key(opened.dataset, context.recipe.pack, opened.listing.code),
        "recipe": context.recipe.name,
        "run_id": context.spec.run_id,
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _outputs(location: str, manifest: Manifest, *, reused: bool) -> dict[str, Any]:
    notes = note_texts(manifest.notes)
    return ({"notes": notes} if notes else {}) | {
        "dataset": location,
        "fingerprint": manifest.fingerprint,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "num_bytes": manifest.num_bytes,
        "num_quarantined": len(manifest.quarantined),
        "reused": reused,
    }
