"""Weights of another training, to begin with."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch import LightningModule
from torch import Tensor

from headrace.data.checkpoint_content import read_weights
from headrace.errors import RecipeError

logger = logging.getLogger(__name__)

_EXAMPLES = 5


def load_weights(
    model: LightningModule, path: Path, *, strict: bool = True, pickled: bool = False
) -> None:
    """Give a model the weights of a checkpoint; with `strict: false` those that fit.

    Args:
        model: As it was made; what does not come from the checkpoint stays.
        path: A checkpoint of Lightning, a `state_dict`, or a `.safetensors` file.
        strict: Whether all weights must be the same by name and shape.
        pickled: Whether the checkpoint may hold objects of any class, which may run any code.

    Raises:
        RecipeError: They do not fit; names which, and how.
        StepError: The checkpoint is missing or damaged.
    """
    given = read_weights(path, pickled=pickled)
    own = model.state_dict()
    fitting = {
        name: value
        for name, value in given.items()
        if name in own and own[name].shape == value.shape
    }
    told = differences(own, given)
    if told and strict:
        raise RecipeError(
            f"The weights of {path} do not fit {type(model).__name__}: {told}",
            "Make the model as it was made there, or set train.init_strict: false, which takes "
            f"the {len(fitting)} of {len(own)} that fit.",
        )
    if not fitting:
        raise RecipeError(
            f"No weight of {path} fits {type(model).__name__}: {told}",
            "Begin with a checkpoint of a model that has parts of the same names and shapes.",
        )
    model.load_state_dict(fitting, strict=False)
    logger.info("%d of %d weights come from %s%s", len(fitting), len(own), path,
                f"; {told}" if told else "")  # fmt: skip


@contextmanager
def telling_misfit(model: LightningModule, path: str | None, *, pickled: bool) -> Iterator[None]:
    """Tell in which weights a model differs from the checkpoint that training is to go on from.

    Raises:
        RecipeError: In place of PyTorch's `RuntimeError`, which names no way on.
    """
    try:
        yield
    except RuntimeError as error:
        if path is None or "loading state_dict" not in str(error):
            raise
        told = differences(model.state_dict(), read_weights(Path(path), pickled=pickled))
        if not told:
            raise
        raise misfit(model, path, told) from error


def misfit(model: LightningModule, path: Path | str, told: str) -> RecipeError:
    """The error when training cannot go on from a checkpoint, with what `differences` told."""
    return RecipeError(
        f"{type(model).__name__} is not the model of {path}, where training is to go on: {told}",
        "Take back what has changed in its code, or start a new run with train.init_from and "
        "train.init_strict: false, which takes the weights that fit.",
    )


def differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """How the weights of a checkpoint differ from a model's, for the user; empty when they fit."""
    shapes = [
        f"{name} is {tuple(given[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    parts = [
        _listed("it lacks", (name for name in own if name not in given)),
        _listed("it has more:", (name for name in given if name not in own)),
        _listed("", shapes),
    ]
    return "; ".join(filter(None, parts))


def _listed(lead: str, names: Iterable[str]) -> str:
    found = list(names)
    if not found:
        return ""
    rest = f" and {len(found) - _EXAMPLES} more" if len(found) > _EXAMPLES else ""
    return f"{lead} {', '.join(found[:_EXAMPLES])}{rest}".strip()
