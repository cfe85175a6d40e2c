"""The split to evaluate, as a process of a node reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, ShardError
from headrace.recipe.dataset import packed_split
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards import format as names
from headrace.shards.dataset import ShardedDataset
from headrace.shards.places import DEFAULT_ROOM
from headrace.staging.gang_store import Traffic, node_source
from headrace.staging.peer_group import PeerGroup
from headrace.staging.soundness import Soundness, all_threads
from headrace.staging.staged import staged
from headrace.staging.staged_copy import StagingOptions
from headrace.staging.staged_folder import StagedFolder


@contextmanager
def split_on_node(
    recipe: Recipe, site: Site, dataset: str, split: str, group: PeerGroup | None
) -> Iterator[ShardedDataset]:
    """Put a split onto this node, where it stays while the block runs.

    Args:
        recipe: The resolved recipe.
        site: The resolved site.
        dataset: Folder or URL of the packed dataset.
        split: The split.
        group: Nodes of which each has staged its part (`serving`). This one takes from the others
            what it lacks, and they fetch for all what none holds. None: this call stages, and what
            there is no room for is read where the dataset lies.

    Yields:
        The split.

    Raises:
        HeadraceError: It cannot be staged.
        ShardError: The block raised another error, and staged shards are damaged; the next stage
            brings them anew.
    """
    stage, fold = recipe.stage, recipe.data.fold
    nothing_more = None if group is None else frozenset[str]()
    options = StagingOptions(partial=stage.partial, s3=site.s3, only=nothing_more)
    splits = (packed_split(split, fold),)
    with staged(dataset, site.tiers, splits, stage.verify, options=options) as copy:
        source = node_source(dataset, site.s3, DEFAULT_ROOM, group, Traffic())
        held = ShardedDataset(copy.folder, split, source, fold)
        sound = Soundness(copy.folder, held.shards if stage.verify else ())
        try:
            yield held
        except HeadraceError as error:
            damaged = sound.damaged(all_threads())
            if not damaged:
                raise
            StagedFolder(copy.folder, copy.tier).take_out(damaged)
            raise ShardError(
                f"Staged shards in {copy.folder} changed since they were verified "
                f"({', '.join(damaged)}); {error.what}",
                "Resume the run: they are staged anew.",
            ) from error


def sample_ids(dataset: ShardedDataset) -> NDArray[np.int64]:
    """Ids of all samples in the order of the split, `(num_samples,) int64`.

    Takes one shard after the other, as not many are held at once of those that lie elsewhere.
    """
    ends = np.cumsum([shard.num_samples for shard in dataset.shards])
    return np.concatenate(
        [
            dataset.gather(names.SAMPLE_ID, np.arange(end - shard.num_samples, end))
            for shard, end in zip(dataset.shards, ends, strict=True)
        ]
    )
