"""Whether a recipe fits a site: all that can be told before anything is started."""

from __future__ import annotations

from headrace.errors import RecipeError, SiteError, UserError, nearest
from headrace.recipe.arguments import check_arguments, check_reader
from headrace.recipe.loggers import check_loggers
from headrace.recipe.places import check_places
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.targets import check_targets

_ROWS = ("hdf5", "parquet", "huggingface", "function")
"""Forms of sources of which a field may be named `label`."""


def check_packing(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe whose dataset cannot be packed on the site.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: A path of the recipe leads where the site does not let recipes go.
        TargetError: `dataset.reader` is not allowed, does not exist, or takes no such argument.
    """
    role = _role(recipe, site, "pack_role", recipe.pack_role)
    check_places(recipe, site)
    check_targets(recipe, site, only="dataset.reader")
    check_reader(recipe, role)


def check_training(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that cannot be trained on the site.

    Raises:
        SiteError: The site lacks the role.
        TargetError: The site does not allow a target or code of the recipe, or a target cannot be
            made from its arguments, or a logger lacks its package.
        RecipeError: It evaluates, and its dataset will have no labels.
        UserError: The ranks cannot share the global batch equally.
    """
    role = _role(recipe, site, "train.role", recipe.train.role)
    check_targets(recipe, site)
    check_arguments(recipe, role, site.allowed_targets)
    check_loggers(recipe, role)
    _check_labels(recipe)
    if recipe.train.script is None:
        num_nodes, ranks_per_node = gang_size(recipe, role)
        check_global_batch(recipe.data.global_batch_size, num_nodes * ranks_per_node)


def gang_size(recipe: Recipe, role: Role) -> tuple[int, int]:
    """Nodes, and ranks on each: the recipe's word first, then the site's."""
    train = recipe.train
    return train.nodes or role.nodes, train.ranks_per_node or role.ranks_per_node


def check_global_batch(global_batch_size: int, world_size: int) -> None:
    """Make sure that a global batch can be shared equally.

    Raises:
        UserError: It cannot; names the nearest sizes that can.
    """
    rest = global_batch_size % world_size
    if rest == 0:
        return
    lower, upper = global_batch_size - rest, global_batch_size - rest + world_size
    valid = f"{lower} or {upper}" if lower else f"{upper}"
    raise UserError(
        f"data.global_batch_size is {global_batch_size}, which {world_size} ranks "
        "cannot share equally",
        f"Nearest valid: {valid}.",
    )


def _check_labels(recipe: Recipe) -> None:
    """Refuse an evaluation where the recipe alone tells that there are no labels."""
    dataset = recipe.dataset
    if recipe.evaluate is None or dataset.source is None or "label" in dataset.fields:
        return
    may_bring_one = dataset.reader is not None or dataset.format in _ROWS
    if dataset.labels == "none" and (dataset.fields or not may_bring_one):
        raise RecipeError(
            "evaluate compares predictions with labels, but dataset.labels is 'none'",
            "Say where labels come from (dataset.labels: folders, index or field), "
            "or set evaluate: null.",
        )


def _role(recipe: Recipe, site: Site, key: str, name: str) -> Role:
    if name not in site.roles:
        raise SiteError(
            f"Recipe '{recipe.name}' asks by {key} for the role '{name}', "
            f"which site '{site.name}' does not have",
            nearest(name, site.roles),
        )
    return site.roles[name]
