"""Recipes shortened to few samples: for a check of one step, and for a rehearsal of all steps."""

from __future__ import annotations

from typing import Any

from headrace.errors import RecipeError
from headrace.recipe.base import Target
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

MOST_SAMPLES = 32
"""Samples of a batch, at most."""

_STEPS, _LIFETIME_S = 2, 1800.0
"""Optimizer steps of a rehearsal, and most seconds of its leases."""

_NOT_ONE_STEP = (
    "min_epochs", "min_steps", "max_time", "val_check_interval", "default_root_dir", "strategy",
)  # fmt: skip
"""Arguments of Lightning's Trainer that do not go with one step in a temporary folder."""


def shortened(recipe: Recipe, num_ranks: int, device: str) -> Recipe:
    """Return a resolved recipe that trains on one rank, and writes below its run's folder only.

    `num_ranks` would train; `device` is `cpu`, or `cuda` if this machine has a GPU.
    """
    data, trainer = recipe.data, recipe.trainer
    only_gpus = trainer.precision.startswith(("16", "transformer"))
    configs = [each.as_config().items() for each in trainer.callbacks]
    # a ModelCheckpoint without a folder writes to that of the run
    callbacks = [Target.model_validate({k: v for k, v in c if k != "dirpath"}) for c in configs]
    extra = {name: each for name, each in trainer.extra.items() if name not in _NOT_ONE_STEP}
    update: dict[str, dict[str, Any]] = {
        "trainer": {
            "accelerator": "auto" if trainer.accelerator == "gpu" else trainer.accelerator,
            "precision": "32-true" if device == "cpu" and only_gpus else trainer.precision,
            "strategy": trainer.strategy if trainer.strategy in ("ddp", "fsdp") else "auto",
            "fsdp": trainer.fsdp.model_copy(update={"tensor_parallel_size": 1}),
            "accumulate_grad_batches": 1,
            "val_every_epochs": 1,
            "compile": False,
            "loggers": (),
            "callbacks": tuple(callbacks),
            "extra": {**extra, "limit_train_batches": 1, "limit_val_batches": 1},
        },
        "pack": {"target": None},
        "stage": {"overlap": False},
    }
    if recipe.reads_shards:
        share = data.global_batch_size // trainer.data_ranks(num_ranks)
        size = min(share // trainer.accumulate_grad_batches, MOST_SAMPLES)
        in_order = {"shuffle": False, "shuffle_window": None, "sampling": "uniform"}
        given = {"global_batch_size": size, "samples_per_epoch": None, "workers": 0}
        given["drop_last"] = False  # some of the samples may be unreadable
        update["data"] = {**given, **(in_order if recipe.dataset_path else {})}
    parts = {
        name: getattr(recipe, name).model_copy(update=values) for name, values in update.items()
    }
    return recipe.model_copy(update=parts)


def rehearsal(recipe: Recipe, site: Site) -> tuple[Recipe, Site]:
    """Return recipe and site of a rehearsal: all steps with few samples, on one rank of each role.

    Raises:
        RecipeError: The recipe trains without a model, so that headrace cannot shorten it.
    """
    if recipe.model is None:
        raise RecipeError(
            f"Recipe '{recipe.name}' trains by code of its own, which cannot be shortened",
            "Leave --rehearse out; first run it with an argument of its own that makes it short.",
        )
    nodes, ranks = gang_size(recipe, site.roles[recipe.train.role])
    short, given = shortened(recipe, nodes * ranks, "cuda"), recipe.trainer
    few = {"limit_train_batches": _STEPS, "limit_val_batches": _STEPS}
    update: dict[str, dict[str, Any]] = {
        "pack": {"max_samples": _STEPS * MOST_SAMPLES, "append": False},
        "data": {"workers": recipe.data.workers},
        "train": {"nodes": None, "ranks_per_node": None},
        "trainer": {
            "accelerator": given.accelerator,
            "compile": given.compile,
            "max_epochs": 1,
            "checkpoint_target": None,
            "extra": {**short.trainer.extra, **few},
        },
        "evaluate": {
            "checkpoint": "last", "also_checkpoints": (), "min_metrics": {}, "max_metrics": {},
        },
    }  # fmt: skip
    parts = {
        name: part.model_copy(update=values)
        for name, values in update.items()
        if (part := getattr(short, name)) is not None
    }
    smallest = {"nodes": 1, "ranks_per_node": 1, "lifetime_max": None}
    roles = {
        name: role.model_copy(update={**smallest, "lifetime": min(role.lifetime_s, _LIFETIME_S)})
        for name, role in site.roles.items()
    }
    whole = {**parts, "name": f"{recipe.name}-rehearsal", "suite": None}
    return short.model_copy(update=whole), site.model_copy(update={"roles": roles})
