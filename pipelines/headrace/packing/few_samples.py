"""Packs a few samples of each split, as a trial of what packing and training would meet."""

from __future__ import annotations

from headrace.files.manifest import Manifest
from headrace.packing.fields import field_rules
from headrace.packing.opened_source import OpenedSource
from headrace.packing.pack_shard import folds_in, merge, pack_shard
from headrace.packing.pack_step import prepare, tasks_of
from headrace.packing.packing_plan import limited, make_plan
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site


def pack_few(recipe: Recipe, site: Site, number: int) -> tuple[str, Manifest]:
    """Pack up to `number` samples of each split and fold below the site's folder.

    The whole source is listed, and divided as packing divides it; samples are those of `limited`.

    Returns:
        The folder of the dataset, and its manifest, whose splits and folds have the numbers of
        samples of the whole source.
    """
    opened = OpenedSource.of(recipe, site, lambda: None).listed(lambda: None)
    listing, target = opened.listing, opened.new_target(site)
    rules = field_rules(listing.source, opened.source, recipe.pack, listing.samples)
    whole = make_plan(opened.dataset, recipe.pack, listing, rules, key=opened.key)
    plan = limited(whole, number)
    prepare(plan, target)
    manifest = merge(plan, list(map(pack_shard, tasks_of(opened, rules, plan, target))), {})
    target.publish(manifest)
    splits = dict.fromkeys(whole.splits, 0)
    for shard in whole.shards:
        splits[shard.split] += shard.num_samples
    counts = {"splits": splits, "folds": folds_in(whole.shards)}
    return target.location, manifest.model_copy(update=counts)
