"""Options of DDP: gradients, weights and messages, as `CHECKS` of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from headrace.errors import RecipeError
from headrace.training.trainer import SignsOfLife
from headrace.training.watch_ranks import Beat
from support.scale_models import (
    RATE,
    WORLD_SIZE,
    Batches,
    Notes,
    Small,
    batches,
    check,
    fit,
    flat,
    gradient,
    joint,
    saving_in,
)


def step_gradients(data: Batches, ddp: dict[str, Any]) -> list[Tensor]:
    """Gradients of each step, which do not depend on each other: the rate is nought."""
    notes, model = Notes(), Small()
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)  # type: ignore[method-assign]
    fit(model, data, {"ddp": ddp}, callbacks=[notes])
    return notes.gradients


def messages(model: LightningModule, data: Batches, keys: dict[str, Any], **others: Any) -> int:
    """How many collectives training took, of whatever kind."""
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()  # type: ignore[union-attr]
    fit(model, data, keys, **others)
    return int(group._get_sequence_number_for_group() - before)  # type: ignore[union-attr]


@check
def plain(_: Path) -> dict[str, Any]:
    mine = batches(dist.get_rank(), 2)
    wanted = [gradient(Small(), batch) for batch in joint(2)]
    found = {}
    for name, ddp in {
        "plain": {},
        "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
        "static": {"static_graph": True},
    }.items():
        found[name] = step_gradients(mine, ddp)
    counts = [messages(Small(), mine, {"ddp": {"bucket_cap_mb": cap}}) for cap in (25, 0.0001)]
    return {"wanted": wanted, "found": found, "counts": counts}


@check
def compressed(_: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    found = step_gradients(batches(rank, 2), {"comm_hook": "fp16"})
    each = [[gradient(Small(), batch) for batch in batches(r, 2)] for r in range(WORLD_SIZE)]
    return {"each": each, "found": found}


@check
def only_on_gpus(_: Path) -> dict[str, Any]:
    """What PyTorch refuses on CPUs, with the messages; the recipe does not name the CPU."""
    mine = batches(dist.get_rank(), 1)
    told = []
    for keys in ({"ddp": {"comm_hook": "bf16"}}, {"sync_batchnorm": True}):
        try:
            fit(Small(), mine, {**keys, "accelerator": "auto"})
        except RecipeError as error:
            told.append(str(error))
    return {"told": told}


@check
def power_sgd(_: Path) -> dict[str, Any]:
    """A rank has one sample, whose gradient is a matrix of rank one: the mean has rank two."""
    mine = batches(dist.get_rank(), 4, 1)
    found = {}
    for columns in (1, 2):
        ddp = {"comm_hook": "powersgd", "powersgd": {"rank": columns, "start": 2}}
        found[columns] = step_gradients(mine, ddp)
    return {"wanted": [gradient(Small(), batch) for batch in joint(4, 1)], "found": found}


@check
def local_sgd(folder: Path) -> dict[str, Any]:
    """Seven steps: two as in DDP, then alone, averaged after steps 3 and 6, and in the end."""
    rank, rates = dist.get_rank(), {"period": 3, "start": 2}
    mine, notes, model = batches(rank, 7), Notes(), Small()
    saving = saving_in(folder / "local")
    trainer = fit(model, mine, {"ddp": {"local_sgd": rates}}, callbacks=[notes, saving],
                  validation=mine[:1])  # fmt: skip
    resumed, after = Small(), Notes()
    path = folder / "local" / "step-000000004.ckpt"
    rest = mine[4:] + mine[:4]  # a plain loader begins anew
    fit(resumed, rest, {"ddp": {"local_sgd": rates}}, callbacks=[after], resume=path)
    node, together = Notes(), {"period": 3, "within_nodes": True}
    fit(Small(), mine, {"ddp": {"local_sgd": together}}, callbacks=[node])
    return {
        "weights": notes.weights,
        "after": after.weights,
        "replicas": _replicas([batches(each, 7) for each in range(WORLD_SIZE)], **rates),
        "one": _replicas([joint(7)], **rates)[0],
        "validated": model.validated,
        "final": flat(model),
        "saved": torch.load(saving.final, weights_only=True)["state_dict"],
        "steps": trainer.global_step,
        "node": node.weights,
        "messages": messages(Small(), batches(rank, 8), {"ddp": {"local_sgd": {"period": 4}}}),
    }


def _replicas(data: list[Batches], period: int, start: int) -> list[list[Tensor]]:
    """Weights after each step of post-local SGD, `[rank][step]`, by one process; a checkpoint is
    written after step 4, which averages too."""
    models = [Small() for _ in data]
    found: list[list[Tensor]] = [[] for _ in data]
    for step, each in enumerate(zip(*data, strict=True)):
        gradients = [gradient(model, batch) for model, batch in zip(models, each, strict=True)]
        mean = torch.stack(gradients).mean(0)
        for model, own in zip(models, gradients, strict=True):
            _write(model, flat(model) - RATE * (mean if step < start else own))
        if step >= start and (step - start) % period == 0:
            _average(models)
        for weights, model in zip(found, models, strict=True):
            weights.append(flat(model))
        if step + 1 == 4:
            _average(models)
    return found


def _average(models: list[Small]) -> None:
    mean = torch.stack([flat(model) for model in models]).mean(0)
    for model in models:
        _write(model, mean)


def _write(model: nn.Module, values: Tensor) -> None:
    nn.utils.vector_to_parameters(values.clone(), model.parameters())


@check
def accumulated(folder: Path) -> dict[str, Any]:
    """Four batches a step, on each rank: as one batch of eight times the size."""
    rank, notes, model = dist.get_rank(), Notes(), Small()
    keys = {"accumulate_grad_batches": 4}
    fit(model, batches(rank, 4), keys, callbacks=[notes])
    every = joint(4)
    big = (torch.cat([x for x, _ in every]), torch.cat([y for _, y in every]))
    counts = [messages(Small(), batches(rank, 8), each) for each in (keys, {})]
    signs = [SignsOfLife(Beat(folder / f"beat-{rank}"))]
    watched = messages(Small(), batches(rank, 8), {}, callbacks=signs)
    counted = {"messages": counts, "watched": watched}
    return {"found": notes.gradients, "wanted": gradient(Small(), big), **counted}
