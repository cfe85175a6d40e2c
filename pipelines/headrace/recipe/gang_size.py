"""How many nodes and ranks train, and whether they can share a batch."""

from __future__ import annotations

from headrace.errors import RecipeError, UserError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site


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
    """Refuse a recipe that trains on more nodes than the role has.

    Raises:
        RecipeError: It does.
    """
    nodes, _ = gang_size(recipe, role)
    if nodes > role.nodes:
        name = recipe.train.role
        raise RecipeError(
            f"train.nodes is {nodes}, but role '{name}' has only {role.nodes}",
            f"Ask for fewer, or raise roles.{name}.nodes in the site file; `headrace resume RUN "
            "--site SITE` reads that anew.",
        )


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
