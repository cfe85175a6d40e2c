"""Checkpoints as folders to which each rank writes its part (`torch.distributed.checkpoint`).

The folder is Lightning's form of it, with a list of checksums, the last of its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.optim import Optimizer

from headrace.checkpoints import sharded
from headrace.checkpoints.weights import differences, misfit
from headrace.files.atomic import AS_USUAL, replacing
from headrace.files.checksums import file_xxh3_128
from headrace.files.damage import seal
from headrace.files.machine import system_error

_INDEX = ".metadata"


class _Writer(FileSystemWriter):
    def write_data(self, *arguments: Any, **options: Any) -> Any:
        """As PyTorch's; an error goes to the other ranks without those that led to it."""
        try:
            return super().write_data(*arguments, **options)
        except RuntimeError as error:
            raise system_error(error) or error from error


def save(content: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint of Lightning, all ranks together; `content` has what each of them holds.

    Raises on all ranks what one of them fails with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {sharded.WEIGHTS: content.pop(sharded.WEIGHTS)}
    state |= _numbered(content.pop("optimizer_states", ()))
    with sharded.one_failure():
        save_state(state, storage_writer=_Writer(folder))
    rank = dist.get_rank()
    checksums: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    mine = {path.name: file_xxh3_128(path) for path in folder.glob(f"__{rank}_*")}
    dist.gather_object(mine, checksums if rank == 0 else None)
    if rank == 0:
        with replacing(folder / sharded.REST, AS_USUAL) as file:
            torch.save(content, file)
        others = {name: file_xxh3_128(folder / name) for name in (_INDEX, sharded.REST)}
        seal(folder, {name: value for each in (*checksums, others) for name, value in each.items()})


def restore(
    model: LightningModule, optimizers: Sequence[Optimizer], folder: Path, *, pickled: bool
) -> dict[str, Any]:
    """Give a model and its optimizers what they had, all ranks together; returns the rest.

    There may be another number of ranks than wrote it.

    Raises:
        RecipeError: It is a checkpoint of another model.
    """
    strict = model.strict_loading
    weights: dict[str, Any] = get_model_state_dict(model)
    differing = differences(weights, sharded.weights_in(folder))
    if differing and strict:
        raise misfit(model, folder, differing)
    state: dict[str, Any] = {sharded.WEIGHTS: weights}
    state |= _numbered([get_optimizer_state_dict(model, each) for each in optimizers])
    sharded.load_into(state, folder, pickled=pickled, partial=not strict)
    model.load_state_dict(state[sharded.WEIGHTS], strict=strict)
    for name, optimizer in _numbered(optimizers).items():
        set_optimizer_state_dict(model, optimizer, optim_state_dict=state[name])
    return sharded.read_rest(folder, pickled=pickled)


def _numbered(each_optimizer: Sequence[Any]) -> dict[str, Any]:
    return {f"optimizer_{number}": each for number, each in enumerate(each_optimizer)}
