"""What runs on each node of a training: stages, starts the ranks, watches them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.data.targets import check_code
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.files.machine import available_memory_bytes
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.staging.gang_store import Brought
from headrace.steps.children import start_program
from headrace.steps.context import resolved
from headrace.steps.model_process import start_forked
from headrace.training.data import data_on_node
from headrace.training.data_watch import DataWatch
from headrace.training.launch import interface_of, interfaces, rank_children
from headrace.training.mpi import run_together
from headrace.training.plan import check_memory, plan_training, training_fingerprint
from headrace.training.records import NodeLaunch, NodeOutcome, NodeReady
from headrace.training.watch import run_watched, tell_failure


def run_node(launch: NodeLaunch) -> NodeOutcome:
    """Run the ranks of a node to their end.

    Ranks are stopped within a second when the step was cancelled or has ended, when its driver
    has gone, or when ranks of another node failed.

    Returns:
        How the ranks ended; faults of ranks are told, not raised.

    Raises:
        HeadraceError: The dataset cannot be staged, or the batches do not fit into memory.
    """
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    manifest = _check(launch, recipe, site)
    with data_on_node(launch, recipe, site, manifest) as data:
        node = NodeReady(
            launch=launch,
            dataset=str(data.folder),
            fingerprint=training_fingerprint(recipe, manifest),
            interface=interface_of(launch.host, interfaces()),
            slurm_name=os.environ.get("SLURMD_NODENAME", ""),
        )
        write_record(launch.folder.ready(launch.node_index), node)
        role = site.roles[recipe.train.role]
        with DataWatch(launch, data, manifest, enabled=recipe.stage.verify) as watch:
            outcome = _run_ranks(node, recipe, role, lambda: data.keep_on() and watch.keep_on())
            data.check()
            if outcome.failures:
                tell_failure(launch, outcome)
            watch.conclude(outcome)
        streamed = sum(_streamed(launch), start=data.relayed)
    return outcome.model_copy(update={"streamed": streamed})


def _streamed(launch: NodeLaunch) -> Iterator[Brought]:
    """What each rank has told; those that were killed have not."""
    for rank in launch.ranks:
        yield read_record(launch.folder.streamed(rank), Brought) or Brought()


def _run_ranks(
    node: NodeReady, recipe: Recipe, role: Role, keep_on: Callable[[], bool]
) -> NodeOutcome:
    if role.launcher is not None:
        return run_together(node, role, keep_on)
    children = rank_children(node, recipe, role)
    start = start_forked if recipe.train.script is None else start_program
    return run_watched(node.launch, children, recipe.train.hang_timeout, keep_on, start)


def _check(launch: NodeLaunch, recipe: Recipe, site: Site) -> Manifest:
    manifest = read_manifest_at(launch.dataset, site.s3).without(launch.skipped)
    role = site.roles[recipe.train.role]
    if recipe.train.script is None:
        check_memory(plan_training(recipe, role, manifest), available_memory_bytes())
    else:
        check_code(recipe.train.script, site)
    return manifest
