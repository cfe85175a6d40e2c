"""Sharded weights, split layers and stages of a pipeline, as `CHECKS` of the ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
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
    joint,
    mesh_check,
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


_EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"


def example() -> ModuleType:
    """The reference recipe's script."""
    spec = importlib.util.spec_from_file_location("pipeline_example", _EXAMPLE)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


@check
def pipelined(_: Path) -> dict[str, Any]:
    """Losses and gradients of two steps by each schedule, and those of the model in one piece."""
    script, found = example(), {}
    generator = torch.Generator().manual_seed(8)
    batches = torch.randint(256, (2, 8, 17), generator=generator)
    for name in script.SCHEDULES:
        pipeline, whole = script.Pipeline(name, micro_batches=4), script.whole_model()
        names = [each for each, _ in pipeline.part.named_parameters()]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (pipeline.part, whole)]
        seen: dict[str, list[Any]] = {"losses": [], "wanted_losses": [], "found": [], "wanted": []}
        for lines in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            seen["losses"].append(float(pipeline.gradients(lines)))
            loss = script.loss_of(whole(lines[:, :-1]), lines[:, 1:])
            loss.backward()
            seen["wanted_losses"].append(float(loss.detach()))
            for key, model in (("found", pipeline.part), ("wanted", whole)):
                weights = dict(model.named_parameters())
                seen[key].append(torch.cat([weights[n].grad.flatten() for n in names]))
            for optimizer in optimizers:
                optimizer.step()
        found[name] = {**seen, "names": names}
    dist.barrier()
    return {"found": found, "all": [name for name, _ in script.whole_model().named_parameters()]}


class Meshed(Own):
    """Splits its blocks over neighbours, and shares all weights out over the others."""

    def configure_model(self) -> None:
        super().configure_model()
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])  # type: ignore[call-overload]


@mesh_check
def meshed(folder: Path) -> dict[str, Any]:
    """Two by two ranks: neighbours get the same samples; against one process with all.

    It goes on from a file with checkpoints in parts, and from these.
    """
    keys = {"strategy": "fsdp", "fsdp": {"tensor_parallel_size": 2}, "gradient_clip_val": 0.5}
    mine, saving = batches(dist.get_rank() // 2, 6), saving_in(folder / "mesh")
    model, resumed, alone = Meshed(), Meshed(), alone_on(joint(6))
    fit(model, mine, keys, callbacks=[saving])
    parts, again = saving_in(folder / "mesh-parts", 5), Meshed()
    path, sharded = saving.folder / "step-000000004.ckpt", {**keys, "sharded_checkpoints": True}
    fit(resumed, mine[4:] + mine[:4], sharded, callbacks=[parts], resume=path)
    path = parts.folder / "step-000000005.ckpt"
    fit(again, mine[5:] + mine[:5], sharded, resume=path)
    weights = [each.to_local() for each in model.parameters() if isinstance(each, DTensor)]
    return {
        "losses": model.losses,
        "resumed": resumed.losses,
        "again": again.losses,
        "parts": str(parts.final),
        "saved": torch.load(saving.final, weights_only=True)["state_dict"],
        "held": sum(each.numel() for each in weights),
        "wanted": {"losses": alone.losses, "weights": alone.state_dict()},
    }
