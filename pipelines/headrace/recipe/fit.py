"""Check that a recipe fits a site, before any machine is used."""

from __future__ import annotations

from headrace.errors import RecipeError, SiteError, nearest
from headrace.recipe.crop import crops_of
from headrace.recipe.fence import check_places
from headrace.recipe.gang_size import check_global_batch, check_nodes, gang_size
from headrace.recipe.model_source import check_model_source
from headrace.recipe.program import check_program
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.target_arguments import (
    check_arguments,
    check_packages,
    check_reader,
    source_code,
)
from headrace.recipe.targets import check_targets, listed_by

_ROWS = ("hdf5", "parquet", "huggingface", "function")
"""Forms of sources that may have a field named `label`."""


def check_packing(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe whose dataset cannot be packed on the site, or with paths that it forbids.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: A path of the recipe leads where the site does not let recipes go.
        TargetError: `dataset.reader` is not allowed, does not exist, or takes no such argument.
    """
    if recipe.dataset is None:
        check_places(recipe, site)
        return
    key = "pack_role" if recipe.dataset_path is None else "train.role"
    role = _role(recipe, site, key, recipe.packing_role)
    check_places(recipe, site)
    check_targets(recipe, site, "dataset.reader")
    check_reader(recipe, role, listed_by(site))


def check_role(recipe: Recipe, site: Site) -> None:
    """Raise SiteError if the site lacks the role, RecipeError if that has too few nodes."""
    check_nodes(recipe, _role(recipe, site, "train.role", recipe.train.role))


def check_training(recipe: Recipe, site: Site) -> None:
    """Refuse a recipe that cannot be trained on the site.

    Raises:
        SiteError: The site lacks the role.
        TargetError: The site does not allow a target or code of the recipe, or a target cannot be
            made from its arguments, or a logger lacks its package.
        RecipeError: It evaluates without labels, or its model lacks named steps or metrics.
        UserError: The ranks cannot share the global batch equally, or the role has too few nodes.
    """
    role = _role(recipe, site, "train.role", recipe.train.role)
    check_nodes(recipe, role)
    check_targets(recipe, site)
    check_program(recipe, site, role)
    check_arguments(recipe, role, listed_by(site))
    crops_of(recipe)
    check_packages(recipe, role)
    _check_model(recipe, role)
    _check_labels(recipe)
    if recipe.reads_shards:
        num_nodes, ranks_per_node = gang_size(recipe, role)
        check_global_batch(
            recipe.data.global_batch_size,
            recipe.trainer.data_ranks(num_nodes * ranks_per_node),
            recipe.trainer.accumulate_grad_batches,
        )


def check_evaluation(recipe: Recipe, site: Site) -> None:
    """Refuse an evaluation of another run that the site does not let a recipe make.

    Raises:
        SiteError: The site lacks the role.
        RecipeError: A path of the recipe leads where the site does not let recipes go.
        TargetError: As for training.
    """
    role = _role(recipe, site, "train.role", recipe.train.role)
    check_places(recipe, site)
    check_targets(recipe, site)
    check_arguments(recipe, role, listed_by(site))
    crops_of(recipe)
    check_packages(recipe, role, ["evaluate.metrics"])
    _check_model(recipe, role, trains=False)


def _check_model(recipe: Recipe, role: Role, *, trains: bool = True) -> None:
    if recipe.evaluate is not None:
        recipe.evaluate.check_bounds()
    check_model_source(recipe, source_code(recipe, role), trains=trains)


def _check_labels(recipe: Recipe) -> None:
    """Refuse an evaluation if the recipe alone shows that labels are missing."""
    dataset = recipe.dataset
    if dataset is None or recipe.evaluate is None or recipe.evaluate.task == "custom":
        return
    if dataset.source is None or "label" in dataset.fields:
        return
    may_bring_one = dataset.reader is not None or dataset.format in _ROWS
    if dataset.labels == "none" and (dataset.fields or not may_bring_one):
        raise RecipeError(
            "evaluate compares predictions with labels, but dataset.labels is 'none'",
            "Say where labels come from (dataset.labels: folders, index or field), set "
            "evaluate.task: custom if the model itself knows the labels, or evaluate: null.",
        )


def _role(recipe: Recipe, site: Site, key: str, name: str) -> Role:
    if name not in site.roles:
        raise SiteError(
            f"Recipe '{recipe.name}' asks by {key} for the role '{name}', "
            f"which site '{site.name}' does not have",
            nearest(name, site.roles),
        )
    return site.roles[name]
