"""What a rank is to read, and from where; imports PyTorch, which drivers and nodes do without."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headrace.data.dataset import reading_of
from headrace.data.instantiate import Allowed, instantiate_all
from headrace.data.loaders import DataSettings
from headrace.data.streaming import shards_held
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards.shard_locations import ShardSource
from headrace.staging.gang_store import Traffic, node_source
from headrace.training.launch_records import NodeReady


def settings_of(
    node: NodeReady, rank: int, given: tuple[Recipe, Site], allowed: Allowed, traffic: Traffic
) -> DataSettings:
    """The data of a rank, by the recipe and site `given`; `traffic` counts what it fetches."""
    recipe, site = given
    data, launch = recipe.data, node.launch
    is_full = any(launch.folder.path.parent.glob(f"*/{launch.folder.full_gpu.name}"))
    return DataSettings(
        folder=Path(node.dataset),
        spec=data,
        seed=recipe.seed,
        rank=recipe.trainer.data_rank(rank),
        world_size=recipe.trainer.data_ranks(launch.world_size),
        transforms=instantiate_all(data.transforms, allowed, "data.transforms"),
        augment=instantiate_all(data.augment, allowed, "data.augment"),
        reading=reading_of(data, allowed),
        source=_source(node, recipe, site, traffic),
        skipped=launch.skipped,
        overlap=recipe.stage.overlap,
        accumulate=recipe.trainer.accumulate_grad_batches,
        num_epochs=recipe.trainer.max_epochs,
        gpu_tier=None if is_full else site.gpu_tier,
        read_again=partial(reading_of, data, allowed),
    )


def _source(node: NodeReady, recipe: Recipe, site: Site, traffic: Traffic) -> ShardSource:
    launch = node.launch
    room = None if recipe.stage.overlap else shards_held(recipe.data)
    return node_source(launch.dataset, site.s3, room, launch.group, traffic)
