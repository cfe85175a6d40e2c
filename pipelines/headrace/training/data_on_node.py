"""The dataset on a node that trains; with `stage.overlap` what the first batches need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.clusters.cancellable_call import check_wanted
from headrace.data.order import needed_first
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.staging.gang_store import Brought
from headrace.staging.staged import StagedCopy, StagingOptions, staged
from headrace.training.launch_records import NodeLaunch


class DataOnNode:
    """A dataset on a node, where ranks read."""

    def __init__(self, copy: StagedCopy | None = None) -> None:
        self._copy = copy

    @property
    def folder(self) -> str:
        """Folder of the dataset on the node; empty where none is staged."""
        return str(self._copy.folder) if self._copy is not None else ""

    @property
    def relayed(self) -> Brought:
        """What was read for other nodes so far."""
        if self._copy is None or self._copy.relayed is None:
            return Brought()
        return Brought(source_bytes=self._copy.relayed.brought.source_bytes)


def manifest_of(dataset: str, site: Site) -> Manifest:
    """What a dataset holds: no shard where there is none, since the script brings its own data."""
    if dataset:
        return read_manifest_at(dataset, site.s3)
    return Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())


@contextmanager
def data_on_node(
    launch: NodeLaunch, recipe: Recipe, site: Site, manifest: Manifest
) -> Iterator[DataOnNode]:
    """Put the dataset onto this node, where it stays while the block runs.

    With `stage.overlap` that is the shards of the first window: ranks bring the rest. Without a
    dataset there is nothing to put.
    """
    if not launch.dataset:
        yield DataOnNode()
        return
    stage = recipe.stage
    options = StagingOptions(
        partial=stage.partial,
        only=needed_first(recipe, manifest),
        skipped=frozenset(launch.skipped),
        s3=site.s3,
        group=launch.group,
        serves_readers=launch.group is not None,
    )
    with staged(
        launch.dataset, site.tiers, stage.splits, stage.verify, check_wanted, options
    ) as copy:
        yield DataOnNode(copy)
