"""Lightning's Trainer from a recipe, with a DDP that is exact where Lightning's is not."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from headrace.data.targets import Allowed, instantiate, resolve
from headrace.recipe.base import Target
from headrace.recipe.recipe import TrainerSpec
from headrace.recipe.targets import uses


class ExactDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """DDP whose results do not depend on interruptions, and whose means over ranks are right.

    DDP lays gradients out anew after its first step, by the order in which they became ready. More
    than two summands give other bits in another layout, so a resumed training would differ in its
    first step. With `find_unused_parameters` the layout stays.

    Args:
        world_size: Number of ranks.
        deterministic: Whether a resume must give the same bits.
    """

    def __init__(self, world_size: int, deterministic: bool) -> None:
        if deterministic and world_size > 2:
            super().__init__(find_unused_parameters=True)
        else:
            super().__init__()

    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        """Reduce over ranks; the mean of integers is no integer.

        Lightning divides what a model logged by the mean number of samples over ranks, rounded
        down, which is wrong when ranks validate on unequal numbers.
        """
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if is_mean and isinstance(tensor, Tensor) and not tensor.is_floating_point():
            tensor = tensor.double()
        return super().reduce(tensor, group=group, reduce_op=reduce_op)


def build_trainer(
    spec: TrainerSpec, allowed: Allowed, num_nodes: int, ranks_per_node: int, **others: Any
) -> Trainer:
    """Make the Trainer of a recipe; `others` are more arguments of Lightning's.

    Raises:
        TargetError: The site does not allow the Trainer class.
    """
    arguments: dict[str, Any] = {
        "accelerator": spec.accelerator,
        "devices": ranks_per_node,
        "num_nodes": num_nodes,
        "strategy": _strategy(spec, num_nodes * ranks_per_node),
        "precision": spec.precision,
        "max_epochs": spec.max_epochs,
        "max_steps": spec.max_steps,
        "gradient_clip_val": spec.gradient_clip_val,
        "accumulate_grad_batches": spec.accumulate_grad_batches,
        "check_val_every_n_epoch": spec.val_every_epochs,
        "deterministic": spec.deterministic,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    make = instantiate({"_target_": spec.target}, allowed, "trainer", partial=True)
    trainer: Trainer = make(**(arguments | others | spec.extra))
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
