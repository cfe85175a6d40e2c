"""How many nodes and ranks train, and whether they can share a batch."""

from __future__ import annotations

import os

from headrace.errors import RecipeError, UserError
from headrace.recipe.base import MAX_PARALLEL
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.suite import SuiteSpec


def gang_size(recipe: Recipe, role: Role) -> tuple[int, int]:
    """Nodes, and ranks on each: the recipe's word first, then the site's."""
    train = recipe.train
    if train.function is not None:  # it is called once
        return 1, 1
    return train.nodes or role.nodes, train.ranks_per_node or role.ranks_per_node


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
    """Refuse a recipe that trains on more nodes, or ranks on each, than the role has.

    Raises:
        RecipeError: It does.
    """
    nodes, ranks = gang_size(recipe, role)
    name, most_ranks = recipe.train.role, _most_ranks(recipe, role)
    if nodes > role.nodes:
        raise RecipeError(
            f"train.nodes is {nodes}, but role '{name}' has only {role.nodes}",
            f"Ask for fewer, or raise roles.{name}.nodes in the site file; `headrace resume RUN "
            "--site SITE` reads that anew.",
        )
    if ranks > most_ranks:
        raise RecipeError(
            f"train.ranks_per_node is {ranks}, but role '{name}' has room for {most_ranks}",
            f"Ask for fewer, or set roles.{name}.ranks_per_node_max in the site file.",
        )


def check_trials_per_node(suite: SuiteSpec, role: Role) -> None:
    """Refuse a suite that has more trials on this machine at once than it has room for.

    Raises:
        RecipeError: It does.
    """
    most = 8 * _num_cpus(role) if role.is_here else MAX_PARALLEL
    if (suite.trials_per_node or 1) > most:
        raise RecipeError(
            f"suite.trials_per_node is {suite.trials_per_node}, but {most} have room here",
            "Ask for fewer, or leave it out: as many as the CPUs allow.",
        )


def _most_ranks(recipe: Recipe, role: Role) -> int:
    """Return how many ranks a node has room for, as far as the role says.

    On GPUs one each, else eight on each CPU: of this machine, or that the batch system is asked
    for.
    """
    batch, ranks = role.batch, role.ranks_per_node
    if role.ranks_per_node_max is not None:
        return max(role.ranks_per_node_max, ranks)
    if batch.gpus_per_node and recipe.trainer.accelerator != "cpu":
        return max(batch.gpus_per_node, ranks)
    if batch.exclusive or not (role.is_here or role.has_queue):
        return MAX_PARALLEL
    return max(8 * _num_cpus(role), ranks)


def _num_cpus(role: Role) -> int:
    return os.cpu_count() or 1 if role.is_here else role.cpus_per_node


def check_global_batch(global_batch_size: int, world_size: int, accumulate: int = 1) -> None:
    """Make sure that the batches of an optimizer step can be shared equally.

    Raises:
        UserError: They cannot; names the nearest sizes that can.
    """
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
