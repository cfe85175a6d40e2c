"""Trained weights as files for other programs: of PyTorch, or of safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from headrace.data.checkpoint_content import read_checkpoint
from headrace.errors import UserError
from headrace.files.atomic import AS_USUAL, replacing
from headrace.record import Record

WeightsFormat = Literal["weights", "safetensors"]


class Exported(Record):
    """What was written."""

    path: str
    format: str
    num_bytes: int
    num_tensors: int
    """Weights and buffers; those that share memory count once."""
    num_values: int
    """Numbers in them."""
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
            f"The weights of {checkpoint} hold what is no tensor: {', '.join(others)}",
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
