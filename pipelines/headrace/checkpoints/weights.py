"""Trained weights: for another training to begin with, and as files for other programs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
import xxhash
from lightning.pytorch import LightningModule
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from headrace.checkpoints.content import read_checkpoint, read_weights
from headrace.errors import RecipeError, UserError
from headrace.files.atomic import AS_USUAL, replacing
from headrace.record import Record

logger = logging.getLogger(__name__)

_EXAMPLES = 5
WeightsFormat = Literal["weights", "safetensors"]


class Exported(Record):
    """What was written."""

    path: str
    format: str
    num_bytes: int
    num_tensors: int
    """Weights and buffers; those that share memory count once."""
    num_values: int
    checkpoint: str
    step: int | None = None
    """Optimizer steps that the weights are from; null when the checkpoint does not tell."""


def export_weights(
    checkpoint: Path, output: Path, form: WeightsFormat, *, pickled: bool = False
) -> Exported:
    """Write the weights of a checkpoint, whole or not at all.

    Args:
        checkpoint: Of Lightning.
        output: File, which is replaced.
        form: `weights`, a `state_dict` that `torch.load(…, weights_only=True)` reads, or
            `safetensors`, where one of several weights that share memory is written, and the
            metadata maps the other names to it, as `safetensors.torch.save_model` does.
        pickled: Whether the checkpoint may hold objects of any class, which may run any code.

    Raises:
        UserError: The format cannot hold a weight.
        StepError: The checkpoint is missing or damaged.
        PickledCheckpointError: It holds pickled objects, and they are not wanted.
    """
    content = read_checkpoint(checkpoint, pickled=pickled)
    weights = _tensors(content["state_dict"], checkpoint)
    kept, others = _apart(weights)
    with replacing(output, AS_USUAL) as file:
        if form == "safetensors":
            file.write(_packed(kept, others))
        else:
            torch.save(dict(weights), file)
    return Exported(
        path=str(output),
        format=form,
        num_bytes=output.stat().st_size,
        num_tensors=len(kept),
        num_values=sum(value.numel() for value in kept.values()),
        checkpoint=str(checkpoint),
        step=content.get("global_step"),
    )


def _tensors(state: Mapping[str, object], checkpoint: Path) -> dict[str, Tensor]:
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise UserError(
            f"The weights of {checkpoint} hold other values than tensors: {', '.join(others)}",
            "Load the checkpoint itself where they are needed.",
        )
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _apart(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """One tensor of each that share all of their memory, and the other names of these."""
    kept: dict[str, Tensor] = {}
    others: dict[str, str] = {}
    names: dict[tuple[object, ...], str] = {}
    for name, value in weights.items():
        memory = (value.untyped_storage().data_ptr(), value.storage_offset())
        place = (*memory, value.dtype, value.shape, value.stride())
        if value.numel() and place in names:
            others[name] = names[place]
        else:
            names[place], kept[name] = name, value
    return kept, others


def _packed(kept: Mapping[str, Tensor], others: Mapping[str, str]) -> bytes:
    alone = {  # parts of one tensor must not share memory either
        name: value.clone(memory_format=torch.contiguous_format) for name, value in kept.items()
    }
    try:
        return safetensors.torch.save(alone, {"format": "pt", **others})
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"safetensors cannot hold these weights: {error}", "Take --format weights."
        ) from error


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
    differing = differences(own, given)
    if differing and strict:
        raise RecipeError(
            f"The weights of {path} do not fit {type(model).__name__}: {differing}",
            "Make the model as it was made there, or set train.init_strict: false, which takes "
            f"the {len(fitting)} of {len(own)} that fit.",
        )
    if not fitting:
        raise RecipeError(
            f"No weight of {path} fits {type(model).__name__}: {differing}",
            "Begin with a checkpoint of a model that has parts of the same names and shapes.",
        )
    model.load_state_dict(fitting, strict=False)
    logger.info("%d of %d weights come from %s%s", len(fitting), len(own), path,
                f"; {differing}" if differing else "")  # fmt: skip


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
        differing = differences(model.state_dict(), read_weights(Path(path), pickled=pickled))
        if not differing:
            raise
        raise misfit(model, path, differing) from error


def misfit(model: LightningModule, path: Path | str, differing: str) -> RecipeError:
    """Return the error for a checkpoint that does not fit a model; see `differences`."""
    return RecipeError(
        f"{type(model).__name__} is not the model of {path}, from which training resumes: "
        f"{differing}",
        "Take back what has changed in its code, or start a new run with train.init_from and "
        "train.init_strict: false, which takes the weights that fit.",
    )


def differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return how weights of a checkpoint differ from a model's, for the user; empty if they fit."""
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


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """Return the XXH3 of a `state_dict()`, 128 bits, hexadecimal, independent of the device.

    It covers name, dtype, shape and bytes of each weight, by name. All ranks must call it if
    weights are sharded.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(state):
        value = state[name]
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        values = whole.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
