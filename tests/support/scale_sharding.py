"""Sharded weights and split layers, as `CHECKS` of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from headrace.errors import PickledCheckpointError, RecipeError
from support.scale_models import (
    Batches,
    Block,
    Deep,
    Own,
    alone_on,
    batches,
    check,
    fit,
    saving_in,
)


@check
def sharded(folder: Path) -> dict[str, Any]:
    """The same training by DDP and FSDP2: losses, what a rank holds, checkpoint and resume."""
    rank, keys = dist.get_rank(), {"gradient_clip_val": 0.5}
    mine, found = batches(rank, 6), {}
    for name, more in {
        "ddp": {},
        "fsdp": {"strategy": "fsdp", "fsdp": {"wrap": ["Block"]}},
    }.items():
        model, saving = Deep(), saving_in(folder / name)
        trainer = fit(model, mine, {**keys, **more}, callbacks=[saving])
        content = torch.load(saving.final, weights_only=True)
        weights = [each.to_local() if isinstance(each, DTensor) else each
                   for each in model.parameters()]  # fmt: skip
        found[name] = {
            "losses": model.losses,
            "held": sum(each.numel() for each in weights),
            "saved": content["state_dict"],
            "optimizer": content["optimizer_states"][0]["state"],
            "steps": trainer.global_step,
        }
    resumed, rest = Deep(), mine[4:] + mine[:4]
    path = folder / "fsdp" / "step-000000004.ckpt"
    fit(resumed, rest, {**keys, "strategy": "fsdp"}, resume=path)
    back = Deep()
    fit(back, rest, keys, resume=path)
    parts = {**keys, "strategy": "fsdp", "fsdp": {"wrap": ["Block"]}, "sharded_checkpoints": True}
    in_parts, again = Deep(), Deep()
    fit(in_parts, mine, parts, callbacks=[saving_in(folder / "parts")])
    path = folder / "parts" / "step-000000004.ckpt"
    fit(again, rest, parts, callbacks=[saving_in(folder / "again")], resume=path)
    wider = Deep()
    wider.network[2] = nn.Linear(16, 2)
    return {
        **found,
        "folder": str(folder),
        "resumed": resumed.losses,
        "back": back.losses,
        "parts": in_parts.losses,
        "again": again.losses,
        "misfit": _told_of(wider, rest, parts, path),
    }


def _told_of(model: Deep, data: Batches, keys: dict[str, Any], resume: Path) -> str:
    try:
        fit(model, data, keys, resume=resume)
    except RecipeError as error:
        return str(error)
    return ""


@check
def tensor_parallel(_: Path) -> dict[str, Any]:
    """Both ranks get the same samples, and each works with half of the columns."""
    mine = batches(0, 4)
    keys = {"strategy": "fsdp", "fsdp": {"tensor_parallel_size": 2}, "gradient_clip_val": 0.5}
    model, alone = Own(), alone_on(mine)
    fit(model, mine, keys)
    held = [each.to_local().shape[0] for each in model.parameters() if isinstance(each, DTensor)]
    return {"losses": model.losses, "wanted": alone.losses, "held": held}


@check
def not_to_be_sharded(_: Path) -> dict[str, Any]:
    """Messages for models and classes that FSDP2 cannot take so."""
    mine, told = batches(dist.get_rank(), 1), []
    bare, tied = Deep(), Deep()
    bare.scale = nn.Parameter(torch.ones(1))
    tied.again = tied.network[0]
    for model, wrap in ((bare, []), (tied, []), (Deep(), ["Blok"])):
        try:
            fit(model, mine, {"strategy": "fsdp", "fsdp": {"wrap": wrap}})
        except RecipeError as error:
            told.append(str(error))
    return {"told": told}


@check
def sharded_with_a_pickle(folder: Path) -> dict[str, Any]:
    """A state that no resume could load: rank 0 tells so without the others."""
    told = []
    for parts in (False, True):
        model, saving = Deep(), saving_in(folder / f"pickle-{parts}")
        model.on_save_checkpoint = lambda checkpoint: checkpoint.update(mine=Block())  # type: ignore[method-assign]
        keys = {"strategy": "fsdp", "sharded_checkpoints": parts}
        try:
            fit(model, batches(dist.get_rank(), 1), keys, callbacks=[saving])
        except PickledCheckpointError as error:
            dist.barrier()  # for which `fit` waits on the other rank
            told.append(str(error))
    return {"told": told}
