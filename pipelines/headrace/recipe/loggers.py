"""Whether the packages that Lightning's loggers need are installed where a recipe trains."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.errors import TargetError
from headrace.recipe.arguments import is_as_here
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

_LIGHTNING = ("lightning.pytorch.loggers", "pytorch_lightning.loggers")

_NEEDS = {
    "CometLogger": ("comet_ml",),
    "LitLogger": ("litlogger",),
    "MLFlowLogger": ("mlflow",),
    "NeptuneLogger": ("neptune",),
    "TensorBoardLogger": ("tensorboard", "tensorboardX"),
    "WandbLogger": ("wandb",),
}
"""Modules of which a logger needs one: Lightning looks for them when it makes it."""


def check_loggers(recipe: Recipe, role: Role) -> None:
    """Refuse loggers that lack their package; nodes with an environment of their own may have it.

    Raises:
        TargetError: One lacks it.
    """
    if not is_as_here(role):
        return
    for index, logger in enumerate(recipe.trainer.loggers):
        place, _, kind = logger.target.rpartition(".")
        needs = _NEEDS.get(kind, ()) if place.startswith(_LIGHTNING) else ()
        if needs and not any(map(find_spec, needs)):
            names = " or ".join(name.replace("_", "-") for name in needs)
            raise TargetError(
                f"trainer.loggers[{index}]: {kind} needs {names}, which is not installed on the "
                "machine that trains (it has the packages of this one)",
                f"Install it: pip install {needs[0].replace('_', '-')}. Without any package: "
                "lightning.pytorch.loggers.CSVLogger.",
            )
