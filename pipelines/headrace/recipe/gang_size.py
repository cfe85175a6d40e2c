"""How many nodes and ranks train, and whether they can share a batch."""

from __future__ import annotations

import os

from headrace.errors import RecipeError, UserError
from headrace.recipe.base import MAX_PARALLEL
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site

_EACH_CPU = 8
"""Most processes of a training, or trials, for each CPU of a node."""


def gang_size(recipe: Recipe, role: Role) -> tuple[int, int]:
    """Return the nodes, and ranks on each: of the recipe, else of the site.

    A script or function runs once, unless the recipe asks for more: it may not divide its work.
    """
    train = recipe.train
    if recipe.model is None:
        return train.nodes or 1, train.ranks_per_node or 1
    return train.nodes or role.nodes, train.ranks_per_node or role.ranks_per_node


def with_readers(recipe: Recipe, site: Site) -> Recipe:
    """Return the recipe with a number for `pack.shards_multiple_of: auto`: the readers of shards.

    `data.workers: auto` counts as one, as does a role that the site lacks.
    """
    role = site.roles.get(recipe.train.role)
    if recipe.pack.shards_multiple_of != "auto":
        return recipe
    nodes, ranks = gang_size(recipe, role) if role else (1, 1)
    workers = recipe.data.workers if isinstance(recipe.data.workers, int) else 1
    pack = recipe.pack.model_copy(update={"shards_multiple_of": nodes * ranks * max(workers, 1)})
    return recipe.model_copy(update={"pack": pack})


def narrowed(recipe: Recipe, site: Site) -> Site:
    """The site, whose gang has no more nodes than the recipe trains on."""
    name = recipe.train.role
    role = site.roles[name]
    nodes, _ = gang_size(recipe, role)
    if role.kind != "gang" or nodes == role.nodes:
        return site
    roles = {**site.roles, name: role.model_copy(update={"nodes": nodes})}
    return site.model_copy(update={"roles": roles})


def check_nodes(recipe: Recipe, role: Role) -> None:
    """Raise RecipeError for more nodes, or processes on each, than the role has room for."""
    nodes, ranks = gang_size(recipe, role)
    at_once = recipe.suite.trials_per_node if recipe.suite else None
    name, room = recipe.train.role, _EACH_CPU * _num_cpus(role)
    for key, asked, most, limit in (
        ("train.nodes", nodes, role.nodes, "nodes"),
        ("train.ranks_per_node", ranks, _most_ranks(recipe, role), "ranks_per_node_max"),
        ("suite.trials_per_node", at_once or 0, room if role.is_here else MAX_PARALLEL, "backend"),
    ):
        if asked > most:
            raise RecipeError(
                f"{key} is {asked}, but role '{name}' has only {most}",
                f"Ask for fewer, or change roles.{name}.{limit} in the site file; `headrace resume "
                "RUN --site SITE` reads that anew.",
            )


def _most_ranks(recipe: Recipe, role: Role) -> int:
    """Return how many ranks a node has room for, as far as the role says; one on each GPU."""
    batch, most = role.batch, MAX_PARALLEL
    if role.ranks_per_node_max is not None:
        most = role.ranks_per_node_max
    elif batch.gpus_per_node and recipe.trainer.accelerator != "cpu":
        most = batch.gpus_per_node
    elif role.is_here or (role.has_queue and not batch.exclusive):
        most = _EACH_CPU * _num_cpus(role)
    return max(most, role.ranks_per_node)


def _num_cpus(role: Role) -> int:
    return os.cpu_count() or 1 if role.is_here else role.cpus_per_node


def check_global_batch(global_batch_size: int, world_size: int, accumulate: int = 1) -> None:
    """Raise UserError, with the nearest valid sizes, if ranks cannot share a batch equally."""
    rest = global_batch_size % (world_size * accumulate)
    if rest == 0:
        return
    lower, upper = global_batch_size - rest, global_batch_size - rest + world_size * accumulate
    valid = f"{lower} or {upper}" if lower else f"{upper}"
    batches = f" in {accumulate} batches (trainer.accumulate_grad_batches)"
    raise UserError(
        f"data.global_batch_size is {global_batch_size}, which {world_size} ranks "
        f"cannot share equally{batches if accumulate > 1 else ''}",
        f"Nearest valid: {valid}.",
    )
