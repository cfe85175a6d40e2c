"""The dataset on a node that trains; with `stage.overlap` what the first batches need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headrace.clusters.cancellable_call import check_wanted
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.staging.staged import StagedCopy, staged
from headrace.staging.tier_choice import StagingOptions
from headrace.training.launch_records import NodeLaunch


def manifest_of(dataset: str, site: Site) -> Manifest:
    """What a dataset holds: no shard where there is none, since the script brings its own data."""
    if dataset:
        return read_manifest_at(dataset, site.s3)
    return Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())


@contextmanager
def data_on_node(
    launch: NodeLaunch, recipe: Recipe, site: Site, manifest: Manifest
) -> Iterator[StagedCopy | None]:
    """Put the dataset onto this node, where it stays while the block runs.

    With `stage.overlap` that is the shards of the first window: ranks bring the rest. None
    without a dataset.
    """
    if not launch.dataset:
        yield None
        return
    stage = recipe.stage
    alone = StagingOptions.of_training(recipe, site, manifest, launch.skipped)
    options = replace(alone, group=launch.group, serves_readers=launch.group is not None)
    with staged(
        launch.dataset, site.tiers, stage.splits, stage.verify, check_wanted, options
    ) as copy:
        yield copy
