"""The stage step: copies the dataset to every node of the lease, once per node."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.clusters.cancellable_call import wanted
from headrace.clusters.fleet import Fleet
from headrace.clusters.node_calls import Node, NodeCalls
from headrace.errors import StepCancelledError
from headrace.files.atomic import read_record, write_record
from headrace.files.manifest import Manifest
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.objects.store import is_remote, read_manifest_at
from headrace.recipe.recipe import StageSpec
from headrace.recipe.site import Tier
from headrace.record import Record
from headrace.staging.peers import groups_of
from headrace.staging.staged import StagedCopy, ensure_staged
from headrace.staging.tier_choice import StagingOptions
from headrace.steps.context import StepContext, skipped_shards

_INTERVAL_S = 0.5
_BYTES = ("num_bytes", "copied_bytes", "source_bytes", "peer_bytes", "reused_bytes")
_TOLD = ("tier", "reused", *_BYTES)


def run(context: StepContext) -> dict[str, Any]:
    """Stage the dataset named by the input `dataset` on all nodes at once.

    Returns:
        `fingerprint`, `num_bytes` of one copy, `seconds`, `copied_bytes` and `bytes_per_s` over
        all nodes, `left_out_bytes` that no node holds, and `nodes`. For each node: name, folder,
        tier, whether it was reused, bytes, bytes read from the dataset, taken from other nodes,
        there before, left at the dataset, and to come while training runs (with
        `stage.overlap`), seconds and bytes per second.
    """
    dataset = context.given("dataset", "pack")
    manifest = read_manifest_at(dataset, context.site.s3)
    skipped = skipped_shards(context, dataset, manifest).files
    manifest = manifest.without(skipped)
    started = time.perf_counter()
    role = context.site.roles[context.recipe.train.role]
    with Fleet.open(context.lease_folder) as fleet:
        context.progress(0, None, "bytes", "waiting for nodes")
        count = context.recipe.train.nodes or role.nodes
        nodes = fleet.nodes(count, role.start_timeout, check=context.check)
        copies = _stage(context, fleet, nodes, dataset, manifest, skipped)
    seconds = time.perf_counter() - started
    context.usage = AttemptUsage(
        node=nodes[0].name,
        nodes=len(nodes),
        cpus=float(len(nodes) * role.cpus_per_node),
        staging_s=seconds,
        fetched_bytes=sum(copy.source_bytes for copy in copies) if is_remote(dataset) else 0,
    )
    copied_bytes = sum(copy.copied_bytes for copy in copies)
    rows = [_row(context, node, copy) for node, copy in zip(nodes, copies, strict=True)]
    for row in rows:
        context.event("staged", **row)
    return {
        "fingerprint": manifest.fingerprint,
        "num_bytes": copies[0].num_bytes,
        "seconds": seconds,
        "copied_bytes": copied_bytes,
        "bytes_per_s": copied_bytes / max(copy.seconds for copy in copies),
        "left_out_bytes": 0 if context.recipe.stage.overlap else _nowhere_bytes(manifest, copies),
        "nodes": rows,
    }


def stage_node(
    dataset: str,
    tiers: Sequence[Tier],
    stage: StageSpec,
    options: StagingOptions,
    progress_file: str,
) -> StagedCopy:
    """Stage the dataset on this node, and write the progress into a file."""
    tick = Ticker(Path(progress_file))
    return ensure_staged(dataset, tiers, stage.splits, stage.verify, tick, options)


class NodeProgress(Record):
    """Progress of one node; a small file that the step driver reads."""

    done_bytes: int
    """Verified bytes on the node."""
    total_bytes: int
    """Bytes that will be on the node."""


class Ticker:
    """Writes the progress of a node, at most twice a second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written_at = float("-inf")

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Write the progress; raises `StepCancelledError` if the step was cancelled."""
        if not wanted():
            raise StepCancelledError("Staging was stopped: its step was cancelled or has gone")
        now = time.monotonic()
        if done_bytes == total_bytes or now - self._written_at > _INTERVAL_S:
            progress = NodeProgress(done_bytes=done_bytes, total_bytes=total_bytes)
            write_record(self._file, progress)
            self._written_at = now


def total_done_bytes(files: Iterable[Path]) -> int:
    """Return the bytes that all nodes have now."""
    found = (read_record(file, NodeProgress) for file in files)
    return sum(progress.done_bytes for progress in found if progress is not None)


def _stage(
    context: StepContext,
    fleet: NodeCalls,
    nodes: Sequence[Node],
    dataset: str,
    manifest: Manifest,
    skipped: frozenset[str],
) -> Sequence[StagedCopy]:
    files = [context.folder.parts / f"node-{node.index}.json" for node in nodes]
    stage, site = context.recipe.stage, context.site
    groups = groups_of(context.folder.parts, [node.host for node in nodes], stage.peers)
    options = StagingOptions.of_training(context.recipe, site, manifest, skipped)
    jobs = [
        (dataset, site.tiers, stage, replace(options, group=group), str(file))
        for file, group in zip(files, groups, strict=True)
    ]
    total_bytes = _num_bytes(manifest, context, options.only) * len(nodes)

    def check() -> None:
        phase = f"copying to {len(nodes)} node{'s'[: len(nodes) > 1]}"
        context.progress(total_done_bytes(files), total_bytes, "bytes", phase)

    copies = fleet.on_nodes(stage_node, jobs, nodes, check=check)
    context.progress(total_bytes, total_bytes, "bytes", "staged")
    return copies


def _num_bytes(manifest: Manifest, context: StepContext, only: frozenset[str] | None) -> int:
    splits = context.recipe.stage.splits or tuple(manifest.splits)
    shards = (shard for split in splits for shard in manifest.shards_of(split))
    return sum(shard.num_bytes for shard in shards if only is None or shard.file in only)


def _nowhere_bytes(manifest: Manifest, copies: Sequence[StagedCopy]) -> int:
    """Return the bytes of the shards that no node holds."""
    nowhere = frozenset.intersection(*(copy.left_out for copy in copies))
    return sum(shard.num_bytes for shard in manifest.shards if shard.file in nowhere)


def _row(context: StepContext, node: Node, copy: StagedCopy) -> dict[str, Any]:
    overlap = context.recipe.stage.overlap
    return {
        "node": node.name,
        "folder": str(copy.folder),
        **{name: getattr(copy, name) for name in _TOLD},
        "left_out_bytes": 0 if overlap else copy.left_out_bytes,
        "coming_bytes": copy.left_out_bytes if overlap else 0,
        "seconds": copy.seconds,
        "bytes_per_s": copy.bytes_per_s,
    }
