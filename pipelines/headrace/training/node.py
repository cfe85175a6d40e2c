"""What runs on each node of a training: stages, starts the ranks, watches them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from headrace.data.targets import check_code
from headrace.errors import StepError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.steps.children import Child, ChildGroup
from headrace.storage.atomic import read_record, write_record, write_text
from headrace.storage.layout import RunFolder
from headrace.storage.manifest import Manifest
from headrace.storage.memory import available_memory_bytes
from headrace.storage.packed import read_manifest_at
from headrace.training.data import DataOnNode, data_on_node
from headrace.training.launch import interface_of, rank_children, rank_spec
from headrace.training.oom import num_memory_kills
from headrace.training.plan import check_memory, plan_training, training_fingerprint
from headrace.training.records import NodeLaunch, NodeOutcome
from headrace.training.watch import RankWatch

_GRACE_S = 3.0


def run_node(launch: NodeLaunch) -> NodeOutcome:
    """Run the ranks of a node to their end.

    Ranks are stopped within a second when the step was cancelled or has ended, when its driver
    has gone, or when ranks of another node failed.

    Args:
        launch: What to start.

    Returns:
        How the ranks ended; faults of ranks are told, not raised.

    Raises:
        HeadraceError: The dataset cannot be staged, or the batches do not fit into memory.
    """
    run = RunFolder(Path(launch.run_folder))
    recipe, site = read_record(run.recipe, Recipe), read_record(run.site, Site)
    if recipe is None or site is None:
        raise StepError(f"{run.path} holds no recipe.json or site.json")
    manifest = _check(launch, recipe, site)
    with data_on_node(launch, recipe, site, manifest) as data:
        children = _prepare(launch, recipe, site, manifest, data.folder)
        return _run_ranks(launch, recipe, children, data)


def _run_ranks(
    launch: NodeLaunch, recipe: Recipe, children: Sequence[Child], data: DataOnNode
) -> NodeOutcome:
    memory_kills = num_memory_kills()
    with ChildGroup(children, _GRACE_S) as group:
        watch = RankWatch(launch, group, children, recipe.train.hang_timeout)
        ends = group.supervise(lambda: watch.keep_on() and data.keep_on())
    data.check()
    failures = watch.failures(ends, out_of_memory=num_memory_kills() > memory_kills)
    if failures:
        write_text(launch.folder.stop, f"{launch.node_name}: {failures[0].what}")
    return NodeOutcome(
        node=launch.node_name,
        stopped=any(end.stopped for end in ends),
        failures=failures,
        beats=watch.beats(),
    )


def _check(launch: NodeLaunch, recipe: Recipe, site: Site) -> Manifest:
    manifest = read_manifest_at(launch.dataset, site.s3).without(launch.skipped)
    role = site.roles[recipe.train.role]
    if recipe.train.script is None:
        check_memory(plan_training(recipe, role, manifest), available_memory_bytes())
    else:
        check_code(recipe.train.script, site)
    return manifest


def _prepare(
    launch: NodeLaunch, recipe: Recipe, site: Site, manifest: Manifest, folder: Path
) -> Sequence[Child]:
    _write_specs(launch, recipe, manifest, folder)
    interface = interface_of(
        launch.host,
        {
            name: [address.address for address in addresses]
            for name, addresses in psutil.net_if_addrs().items()
        },
    )
    return rank_children(launch, recipe, site.roles[recipe.train.role], str(folder), interface)


def _write_specs(launch: NodeLaunch, recipe: Recipe, manifest: Manifest, staged: Path) -> None:
    fingerprint = training_fingerprint(recipe, manifest)
    for rank in launch.ranks:
        spec = rank_spec(launch, rank, str(staged), fingerprint, recipe.stage.overlap)
        write_record(launch.folder.spec(rank), spec)
