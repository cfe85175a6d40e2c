"""What training will do, as a pure function of recipe, site role and manifest."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from headrace.data.batch_memory import batch_bytes
from headrace.data.order import EachOnceOrder, TrainOrder
from headrace.data.sampling import check_cropped, weight_field
from headrace.errors import MemoryExhaustedError, RecipeError, nearest
from headrace.files.manifest import Manifest
from headrace.recipe.crop import crops_of
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.recipe.difference import essence
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

_TRANSFORMS = "headrace.data.transforms."


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """A training, before anything is started."""

    num_nodes: int
    ranks_per_node: int
    batch_per_rank: int
    batches_per_epoch: int
    steps_per_epoch: int
    epochs: int
    total_steps: int
    max_steps: int
    """The recipe's limit of these; -1 for none."""
    num_left_out: int
    """Samples that each epoch leaves out, since they fill no step."""
    batch_bytes: int
    """Estimated memory for batches on each rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.ranks_per_node

    def steps_with(self, steps_per_batch: int) -> int:
        """Optimizer steps in all, of a model that does so many with each batch."""
        steps = self.steps_per_epoch * self.epochs * steps_per_batch
        return steps if self.max_steps < 0 else min(steps, self.max_steps)


def plan_training(recipe: Recipe, role: Role, manifest: Manifest) -> TrainPlan:
    """Plan the training of a recipe's model.

    Raises:
        UserError: The global batch cannot be shared equally, there are too few samples,
            `stage.splits` leaves out what training reads, or a transform asks for another field.
        ManifestError: The dataset has no training split, not the fold to validate on, or not the
            split to evaluate on.
    """
    num_nodes, ranks_per_node = gang_size(recipe, role)
    manifest.shards_of(TRAIN)
    _check_staged(recipe, manifest)
    _check_fields(recipe, manifest)
    manifest = manifest.with_fold(recipe.data.fold)
    for variant in recipe.evaluate.variants if recipe.evaluate else ():
        manifest.shards_of(variant.split)
    if recipe.data.sampling != "uniform":
        weight_field(recipe.data.sampling, manifest)
    order = TrainOrder(
        num_samples=recipe.data.samples_per_epoch or manifest.splits[TRAIN],
        seed=recipe.seed,
        global_batch_size=recipe.data.global_batch_size,
        accumulate=recipe.trainer.accumulate_grad_batches,
        world_size=recipe.trainer.data_ranks(num_nodes * ranks_per_node),
        drop_last=recipe.data.drop_last,
    )
    if manifest.splits.get(VALIDATION):
        EachOnceOrder(
            num_samples=manifest.splits[VALIDATION],
            global_batch_size=order.batch_span,
            world_size=order.world_size,
        )
    steps = math.ceil(order.num_batches / recipe.trainer.accumulate_grad_batches)
    total, limit = steps * recipe.trainer.max_epochs, recipe.trainer.max_steps
    _check_kept(recipe, total)
    return TrainPlan(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        batch_per_rank=order.batch_span // order.world_size,
        batches_per_epoch=order.num_batches,
        steps_per_epoch=steps,
        epochs=recipe.trainer.max_epochs,
        total_steps=total if limit < 0 else min(total, limit),
        max_steps=limit,
        num_left_out=order.num_left_out,
        batch_bytes=batch_bytes(recipe, role, manifest) // ranks_per_node,
    )


def _check_kept(recipe: Recipe, total: int) -> None:
    """Refuse to evaluate a step that there will not be, unless `max_steps` says that there is.

    How many items a Dataset of the user's own has is not known here.
    """
    last = max(recipe.evaluate.steps, default=0) if recipe.evaluate else 0
    if recipe.data.dataset is None and last > max(total, recipe.trainer.max_steps):
        raise RecipeError(
            f"evaluate.checkpoint is {last}, but training has {total:,} optimizer steps: "
            f"trainer.max_epochs is {recipe.trainer.max_epochs}",
            "Name an earlier one, or train longer. A model that steps several times a batch has "
            "more of them: set trainer.max_steps.",
        )


def _check_staged(recipe: Recipe, manifest: Manifest) -> None:
    read = [split for split in (TRAIN, VALIDATION) if manifest.splits.get(split)]
    left_out = [split for split in read if split not in (recipe.stage.splits or read)]
    if left_out:
        raise RecipeError(
            f"stage.splits leaves out {', '.join(left_out)}, which training reads",
            f"Add {'it' if len(left_out) == 1 else 'them'}, or set stage.splits to null.",
        )


def _check_fields(recipe: Recipe, manifest: Manifest) -> None:
    """Refuse transforms of headrace, and `data.batch`, for fields that the samples have not.

    They keep all fields. What the user's own code makes of a sample is not known here.
    """
    data = recipe.data
    crops = crops_of(recipe)
    for crop in crops.values():
        check_cropped(crop.field, manifest)
    if data.dataset or len(data.sample_transforms) > len(crops) or data.collate:
        return
    for key in ("transforms", "augment"):
        for index, transform in enumerate(getattr(data, key)):
            if not transform.target.startswith(_TRANSFORMS):
                return
            name = str(transform.as_config().get("field", "image"))
            _check_field(f"data.{key}[{index}]", name, manifest, "Set its 'field'. ")
    for name in (data.batch,) if isinstance(data.batch, str) else data.batch or ():
        _check_field("data.batch", name, manifest)


_OF_LABEL = "Name the column that is the label in dataset.label_field. "


def _check_field(key: str, name: str, manifest: Manifest, hint: str = "") -> None:
    names = [field.name for field in manifest.fields]
    if name.removesuffix("_shape") not in (*names, "sample_id"):
        raise RecipeError(
            f"{key} asks for the field '{name}', which samples of dataset '{manifest.name}' "
            "have not",
            f"{hint}{_OF_LABEL if name == 'label' else ''}{nearest(name, names)}",
        )


def check_memory(plan: TrainPlan, available_bytes: int) -> None:
    """Make sure that a node can hold its ranks' batches."""
    needed = plan.batch_bytes * plan.ranks_per_node
    if needed > available_bytes:
        raise MemoryExhaustedError(
            f"Batches of {plan.ranks_per_node} ranks need about {needed / 2**20:.0f} MiB, "
            f"the node has {available_bytes / 2**20:.0f} MiB left",
            "Lower data.global_batch_size or data.prefetch, train on more nodes, or free memory of "
            "copies that are unused (`headrace cache list`).",
        )


def training_fingerprint(recipe: Recipe, manifest: Manifest) -> str:
    """Hash of what is trained on what, for any number of nodes and ranks.

    Equal fingerprints give equal weights, but for the order of sums where ranks differ in number.
    """
    text = f"{essence(recipe)}\n{manifest.fingerprint}"
    return hashlib.sha256(text.encode()).hexdigest()
