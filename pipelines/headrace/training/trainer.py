"""Lightning's Trainer from a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger

from headrace.data.targets import Allowed, instantiate, resolve
from headrace.recipe.base import Target
from headrace.recipe.kinds import uses
from headrace.recipe.recipe import TrainerSpec
from headrace.training.strategy import ExactDDPStrategy


@dataclass(frozen=True, kw_only=True)
class TrainerParts:
    """What goes into the Trainer besides the recipe's `trainer`."""

    callbacks: Sequence[Callback]
    """Callbacks, headrace's and the recipe's."""
    loggers: Sequence[Logger]
    """The recipe's loggers."""
    root: Path
    """The run's folder, for whatever Lightning writes."""
    num_nodes: int
    """Nodes that train."""
    ranks_per_node: int
    """Ranks on each node."""
    validate: bool
    """Whether there is something to validate on."""


def build_trainer(spec: TrainerSpec, allowed: Allowed, parts: TrainerParts) -> Trainer:
    """Make the Trainer.

    Args:
        spec: The recipe's `trainer`.
        allowed: What targets may name.
        parts: Callbacks, loggers and the like.

    Raises:
        TargetError: The site does not allow the Trainer class.
    """
    arguments: dict[str, Any] = {
        "accelerator": spec.accelerator,
        "devices": parts.ranks_per_node,
        "num_nodes": parts.num_nodes,
        "strategy": _strategy(spec, parts.num_nodes * parts.ranks_per_node),
        "precision": spec.precision,
        "max_epochs": spec.max_epochs,
        "max_steps": spec.max_steps,
        "gradient_clip_val": spec.gradient_clip_val,
        "accumulate_grad_batches": spec.accumulate_grad_batches,
        "check_val_every_n_epoch": spec.val_every_epochs,
        "limit_val_batches": None if parts.validate else 0,
        "deterministic": spec.deterministic,
        "default_root_dir": str(parts.root),
        "callbacks": list(parts.callbacks),
        "logger": list(parts.loggers) or False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    make = instantiate({"_target_": spec.target}, allowed, "trainer", partial=True)
    trainer: Trainer = make(**(arguments | spec.extra))
    return trainer


def _strategy(spec: TrainerSpec, world_size: int) -> ExactDDPStrategy | str:
    return ExactDDPStrategy(world_size, spec.deterministic) if world_size > 1 else "auto"


def build_loggers(targets: Sequence[Target], allowed: Allowed, folder: Path) -> list[Logger]:
    """Make the recipe's loggers; those that take a `save_dir` get the run's unless they name one.

    Raises:
        TargetError: The site does not allow one of them.
        UserCodeError: One could not be made.
    """
    loggers = []
    for index, target in enumerate(targets):
        key, config = f"trainer.loggers[{index}]", target.as_config()
        (use,) = (use for use in uses(key, config) if use.key == key)
        if "save_dir" in inspect.signature(resolve(use, allowed)).parameters:
            config = {"save_dir": str(folder), **config}
        loggers.append(instantiate(config, allowed, key))
    return loggers
