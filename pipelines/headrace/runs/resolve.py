"""Resolve recipes and sites to the form that runs keep, with all checks that are possible now."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import (
    DataError,
    HeadraceError,
    RecipeError,
    SiteError,
    UnclearNamesError,
    UserError,
)
from headrace.files.damage import archive_damage, is_sealed, sealed_damage
from headrace.files.layout import RunFolder
from headrace.recipe.fence import absolute, opened, with_code_beside
from headrace.recipe.fit import check_evaluation, check_packing, check_role, check_training
from headrace.recipe.gang_size import narrowed, with_readers
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.target_arguments import is_as_here
from headrace.runs.planned_steps import KINDS
from headrace.runs.runs import Run, outputs_of
from headrace.states import StepState
from headrace.steps.mailbox import StepResult
from headrace.steps.run import failure_of

if TYPE_CHECKING:
    from headrace.files.manifest import Manifest
    from headrace.runs.names import Named

logger = logging.getLogger(__name__)

_LISTING_S = 2.0
_WEIGHTS = (".ckpt", ".pt", ".pth", ".safetensors")
"""Suffixes of files that `train.init_from` may name; other names may be runs."""


def resolve(
    recipe: Recipe, site: Site, kind: str, *, is_from_terminal: bool
) -> tuple[Recipe, Site]:
    """Return a recipe and a site as a run of this kind keeps them, checked against each other.

    Raises:
        SiteError: The site lacks a role that the recipe needs.
        UserError: The recipe does not fit the site in another way, its source is missing, or a
            package for its object stores is missing.
        DataError: Its packed dataset lacks a split or labels, or its manifest is damaged.
    """
    if kind == "pack":
        _ = recipe.named_dataset  # raises without a dataset
    recipe = absolute(_with_init_file(recipe, site))
    if is_from_terminal:
        recipe = with_code_beside(recipe, Path.cwd())
    site = opened(site, is_from_terminal=is_from_terminal)
    if kind == "evaluate":
        check_evaluation(recipe, site)
        _check_weights(recipe, site)
        return recipe, site
    if kind not in KINDS:
        check_role(recipe, site)
        return recipe, narrowed(recipe, site)
    check_packing(recipe, site)
    recipe = with_readers(recipe, site)
    if recipe.dataset is not None:
        from headrace.packing.recipe_check import check_recipe  # imports numpy

        check_recipe(recipe.dataset, recipe.pack)
        _check_pixels(recipe, site)
    if kind == "train":
        check_training(recipe, site)
        _check_weights(recipe, site)
        _check_dataset(recipe, site, recipe.dataset_path)
        site = narrowed(recipe, site)
    _check_places(recipe, site)
    on_one_lease = _on_one_lease(recipe, site)
    return (recipe if kind == "pack" else on_one_lease), site


def _check_pixels(recipe: Recipe, site: Site) -> None:
    """Refuse images that need more memory than a node has; each task holds one and copies."""
    from headrace.files.machine import available_memory_bytes

    role = site.roles[recipe.packing_role]
    memory = role.batch.memory_per_node or (available_memory_bytes() if role.is_here else math.inf)
    tasks = role.threads_per_node * (role.nodes if role.is_here else 1)
    for name, field in recipe.pack.fields.items():
        needed = 6 * math.prod(field.resize or (0,)) * tasks
        if needed > memory:
            raise RecipeError(
                f"pack.fields.{name}.resize is {list(field.resize or ())}, which takes "
                f"{needed / 2**30:,.0f} GiB of the {memory / 2**30:,.0f} GiB that a node has",
                "Choose a smaller height and width.",
            )


def _on_one_lease(recipe: Recipe, site: Site) -> Recipe:
    """Return the recipe with the role that trains for packing, if its dataset is packed already.

    Then only one lease waits in the queue. If the dataset is gone by then, that lease packs it.
    Sources that take long to list, may end this process, or run the user's code, are left to the
    nodes.
    """
    if recipe.dataset is None or recipe.dataset.source is None:
        return recipe
    from headrace.objects.store import is_remote

    source, target = recipe.dataset.source, recipe.pack.target or ""
    role = site.roles[recipe.packing_role]
    is_frail = recipe.dataset.reader or (recipe.dataset.index or "").endswith(".parquet")
    if role.is_here or is_frail or is_remote(source) or is_remote(target):
        return recipe
    from headrace.packing.opened_source import is_packed

    until_s = time.monotonic() + _LISTING_S

    def check() -> None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{source} takes long to list")

    try:
        if is_packed(recipe, site, check):
            return recipe.model_copy(update={"pack_role": recipe.train.role})
    except (HeadraceError, OSError) as error:
        if isinstance(error, UnclearNamesError) and _is_shared(Path(source), role, site):
            raise  # nodes would find the same
        logger.info("Its nodes will check whether %s is packed: %s", source, error)
    return recipe


def of_run(recipe: Recipe, run: RunFolder, *, watch: bool = False) -> Recipe:
    """Return a recipe whose evaluated checkpoints are files of a run.

    With `watch` they are the checkpoints that the run will have.

    Raises:
        RecipeError: The recipe leaves evaluation out.
        UnknownNameError: The run does not have the checkpoint.
    """
    from headrace.checkpoints.files import chosen

    spec = recipe.evaluate
    if spec is None:
        raise RecipeError(
            f"The recipe of run {run.run_id} leaves evaluation out",
            "Say what to evaluate, as in evaluate.split=test."
            if recipe.model is not None
            else "Only a 'model' can be evaluated: a script or function reports its own metrics.",
        )
    named = () if watch else spec.checkpoints
    files = [each if each in spec.files else str(chosen(run, str(each))) for each in named]
    first, *others = dict.fromkeys(files or ["last"])
    update = {"checkpoint": first, "also_checkpoints": tuple(others)}
    return recipe.model_copy(update={"evaluate": spec.model_copy(update=update)})


def check_evaluated(recipe: Recipe, dataset: str) -> None:
    """Refuse a packed dataset that lacks data for an evaluation, if it is visible here.

    Raises:
        DataError: It has no labels, or a split is missing or empty.
        RecipeError: A bound names an unknown metric.
    """
    # it imports numpy, and Airflow parses this module
    from headrace.evaluation.evaluation_plan import plan as plan_evaluation

    manifest = _visible(dataset)
    if manifest is not None and recipe.evaluate is not None:
        for variant in recipe.evaluate.variants:
            plan_evaluation(manifest.with_fold(recipe.data.fold), variant)


def _visible(dataset: str) -> Manifest | None:
    """Return the manifest of a dataset; None in an object store or on the nodes' own disks."""
    from headrace.files.manifest_file import FILE_NAME, read_manifest  # imports numpy and xxhash

    folder = Path(dataset).expanduser()
    return read_manifest(folder) if (folder / FILE_NAME).is_file() else None


def _check_places(recipe: Recipe, site: Site) -> None:
    """Refuse stores whose package is missing, and a missing source, unless nodes may have them."""
    from headrace.objects.store import check_package, is_remote

    if recipe.dataset is None:
        return  # then there are no copies of checkpoints either
    role, source = site.roles[recipe.packing_role], recipe.dataset.source
    if is_as_here(role):
        copies = recipe.trainer.checkpoint_target
        for url in (source, recipe.dataset.path, recipe.pack.target, copies):
            if url is not None:
                check_package(url)
    if source is None or is_remote(source):
        return
    folder = Path(source).expanduser()
    if _is_shared(folder, role, site) and not folder.is_dir():
        from headrace.packing.sources.open import open_place

        open_place(source)  # raises unless it is a file that can be packed


def _is_shared(path: Path, role: Role, site: Site) -> bool:
    """Whether a path is the same for this machine and the nodes of a role."""
    return role.is_here or path.is_relative_to(Path(site.folder).expanduser())


def within_reach(found: Named, recipe: Recipe, site: Site) -> Named:
    """Return a run or trial by the folder that has its checkpoints, for nodes of a site.

    Raises:
        SiteError: It is a trial that ran at another site, whose folder the nodes may not see.
    """
    there, role = found.at_site, site.roles.get(recipe.train.role)
    folder = there.folder.path
    if there.record == found.record or role is None or _is_shared(folder, role, site):
        return there
    raise SiteError(
        f"Trial {found.name} ran at site '{there.record.site_name}', and its folder {folder} is "
        f"not in the folder of site '{site.name}', {site.folder}",
        f"Name site {there.record.site_name}. Nodes of {site.name} that see the folder can load a "
        f"file of it: headrace run RECIPE --site {site.name} train.init_from={folder}/…",
    )


def _with_init_file(recipe: Recipe, site: Site) -> Recipe:
    """Return the recipe with a file for the name in `train.init_from`; see `with_model`."""
    wanted = recipe.train.init_from
    if wanted is None or "/" in wanted or wanted.startswith("~") or Path(wanted).exists():
        return recipe
    if Path(wanted).suffix in _WEIGHTS:
        return recipe
    from headrace.checkpoints.files import chosen
    from headrace.runs.names import with_model

    found, checkpoint = with_model(wanted)
    path = chosen(within_reach(found, recipe, site).folder, checkpoint)
    train = recipe.train.model_copy(update={"init_from": str(path)})
    return recipe.model_copy(update={"train": train})


def _check_weights(recipe: Recipe, site: Site) -> None:
    """Refuse files of weights that are missing, and checkpoints to evaluate that are damaged."""
    role, wanted = site.roles[recipe.train.role], recipe.train.init_from
    if wanted is not None and not _is_there(wanted, role, site):
        raise RecipeError(
            f"train.init_from is {wanted}, which is not a file",
            "Name a checkpoint, a .safetensors file, or a run or trial: RUN, RUN:best, RUN:last, "
            "RUN:STEP, SUITE, SUITE:NUMBER, SUITE:NUMBER:STEP; `headrace runs` lists runs.",
        )
    for file in recipe.evaluate.files if recipe.evaluate else ():
        problem = None if _is_there(file, role, site) else "the file does not exist"
        path = Path(file).expanduser()
        if path.exists():
            problem = sealed_damage(path) if path.is_dir() else archive_damage(path)
        if problem is not None:
            raise RecipeError(
                f"evaluate.checkpoint is {file}: {problem}",
                "Name a checkpoint that is whole, or last, best, or a number of optimizer steps.",
            )


def _is_there(file: str, role: Role, site: Site) -> bool:
    """Whether a file exists; True if only the nodes can tell."""
    path = Path(file).expanduser()
    return path.is_file() or is_sealed(path) or not _is_shared(path, role, site)


def _check_dataset(recipe: Recipe, site: Site, dataset: str | None) -> None:
    """Refuse a dataset with too few samples, without labels, or without the splits of a recipe."""
    if dataset is None or recipe.model is None or (manifest := _visible(dataset)) is None:
        return
    from headrace.training.training_plan import plan_training

    plan_training(recipe, site.roles[recipe.train.role], manifest)
    check_evaluated(recipe, dataset)


def check_packed(run: Run, packed: StepResult) -> StepResult:
    """Return the result of packing: a failure if the rest of the run cannot use the dataset."""
    dataset = packed.outputs.get("dataset")
    try:
        before = outputs_of(run.run_id).get("pack", {})
        _check_same(packed.outputs.get("fingerprint"), before.get("fingerprint"))
        if run.request.kind == "train":
            _check_dataset(run.recipe, run.site, dataset if isinstance(dataset, str) else None)
    except (UserError, DataError) as error:
        kind = type(error)
        named = kind(f"{dataset} is packed, but the run cannot use it: {error.what}", error.hint)
        return packed.model_copy(update={"state": StepState.FAILED, "failure": failure_of(named)})
    return packed


def _check_same(new: object, old: object) -> None:
    if old not in (None, new):
        what = f"its fingerprint is {new}, and the run began with {old}"
        raise DataError(what, "Bring its source back as it was, or start a new run.")
