"""Ranks that train with one scale key after the other and leave what they saw.

`python -m support.scale_ranks RANK FOLDER`: writes `FOLDER/rank-<RANK>.pt`, a mapping of what
each function of `CHECKS` gave.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader

from headrace.data.targets import Allowed
from headrace.errors import RecipeError
from headrace.recipe.load import parse
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpointing import CheckpointWriter, StepCheckpoints
from headrace.training.trainer import build_trainer

WORLD_SIZE = 2
BATCH = 4
RATE = 0.1
CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {}
Batches = list[tuple[Tensor, Tensor]]


def check(function: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
    """Enter a function into `CHECKS`."""
    CHECKS[function.__name__] = function
    return function


class Small(LightningModule):
    """A regression by a network, trained with plain SGD unless a model says otherwise."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.network = network or nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.losses: list[float] = []
        self.validated: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        del index
        loss = nn.functional.mse_loss(self.network(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        del batch, index
        self.validated.append(flat(self))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Notes(Callback):
    """Gradients before each optimizer step, and weights after each batch."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.weights: list[Tensor] = []

    def on_before_optimizer_step(self, trainer: Trainer, model: LightningModule, *_: Any) -> None:
        del trainer
        self.gradients.append(torch.cat([p.grad.detach().flatten() for p in model.parameters()]))

    def on_train_batch_end(self, trainer: Trainer, model: LightningModule, *_: Any) -> None:
        del trainer
        self.weights.append(flat(model))


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def batches(rank: int, count: int, size: int = BATCH, seed: int = 0) -> Batches:
    """Batches of a rank, `(size, 16)` and `(size, 1)` each."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return [
        (torch.randn(size, 16, generator=generator), torch.randn(size, 1, generator=generator))
        for _ in range(count)
    ]


def joint(count: int, size: int = BATCH) -> Batches:
    """The batches of all ranks together."""
    parts = [batches(rank, count, size) for rank in range(WORLD_SIZE)]
    return [
        (torch.cat([x for x, _ in each]), torch.cat([y for _, y in each]))
        for each in zip(*parts, strict=True)
    ]


def gradient(model: Small, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Gradient of one process."""
    loss = nn.functional.mse_loss(model.network(batch[0]), batch[1])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def fit(model: LightningModule, data: Batches, keys: dict[str, Any], **others: Any) -> Trainer:
    """Train one epoch with these keys of a recipe's `trainer`."""
    content = {"accelerator": "cpu", "max_epochs": 1, **keys}
    validation, resume = others.pop("validation", None), others.pop("resume", None)
    keeps = any(isinstance(each, StepCheckpoints) for each in others.get("callbacks", ()))
    trainer = build_trainer(
        parse(TrainerSpec, content, "test"), Allowed(listed=()), 1, WORLD_SIZE,
        logger=False, enable_checkpointing=keeps, **others,
    )  # fmt: skip
    loaders = [DataLoader(each, batch_size=None) for each in (data, validation or [])]  # type: ignore[arg-type]
    trainer.fit(model, *loaders, ckpt_path=resume, weights_only=True)
    return trainer


def step_gradients(data: Batches, ddp: dict[str, Any]) -> list[Tensor]:
    """Gradients of each step, which do not depend on each other: the rate is nought."""
    notes, model = Notes(), Small()
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)  # type: ignore[method-assign]
    fit(model, data, {"ddp": ddp}, callbacks=[notes])
    return notes.gradients


def messages(model: LightningModule, data: Batches, keys: dict[str, Any]) -> int:
    """How many collectives training took, of whatever kind."""
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()  # type: ignore[union-attr]
    fit(model, data, keys)
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
    saving = _saving(folder / "local")
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


def _saving(folder: Path, every_steps: int = 4) -> StepCheckpoints:
    folder.mkdir(exist_ok=True)
    writer = CheckpointWriter(token="t", before=lambda: None)
    return StepCheckpoints(folder, every_steps=every_steps, prune=lambda: None, writer=writer)


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
def accumulated(_: Path) -> dict[str, Any]:
    """Four batches a step, on each rank: as one batch of eight times the size."""
    rank, notes, model = dist.get_rank(), Notes(), Small()
    keys = {"accumulate_grad_batches": 4}
    fit(model, batches(rank, 4), keys, callbacks=[notes])
    every = joint(4)
    big = (torch.cat([x for x, _ in every]), torch.cat([y for _, y in every]))
    counts = [messages(Small(), batches(rank, 8), each) for each in (keys, {})]
    return {"found": notes.gradients, "wanted": gradient(Small(), big), "messages": counts}


def main(rank: int, folder: Path) -> None:
    """Meet the other rank, run all checks, leave the findings."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    os.environ |= {"TORCHELASTIC_RUN_ID": "scale", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    store = FileStore(str(folder / "meeting"), WORLD_SIZE)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=120)
    )
    only = sys.argv[3:]
    found = {name: run(folder) for name, run in CHECKS.items() if not only or name in only}
    torch.save(found, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
