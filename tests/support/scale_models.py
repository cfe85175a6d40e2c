"""Models that ranks train with the keys for many ranks, their samples, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from headrace.data.instantiate import Allowed
from headrace.recipe.load import parse
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpoint_callbacks import StepCheckpoints
from headrace.training.checkpoint_writer import CheckpointWriter
from headrace.training.learning_rates import scaling_callbacks
from headrace.training.strategies import form
from headrace.training.trainer import build_trainer

WORLD_SIZE = 2
BATCH = 4
RATE = 0.1
Batches = list[tuple[Tensor, Tensor]]
Check = Callable[[Path], dict[str, Any]]
CHECKS: dict[str, Check] = {}
"""By two ranks."""
MESH_CHECKS: dict[str, Check] = {}
"""By four."""


def check(function: Check) -> Check:
    """Enter a function into `CHECKS`."""
    CHECKS[function.__name__] = function
    return function


def mesh_check(function: Check) -> Check:
    """Enter a function into `MESH_CHECKS`."""
    MESH_CHECKS[function.__name__] = function
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
        del index
        self.validated.append(flat(self))
        loss = nn.functional.mse_loss(self.network(batch[0]), batch[1])
        self.log("val", loss, batch_size=len(batch[0]), sync_dist=True)

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
    spec = parse(TrainerSpec, content, "test")
    scaling = scaling_callbacks(spec, BATCH * WORLD_SIZE)
    callbacks = [*scaling, *others.pop("callbacks", ())]
    keeps = any(isinstance(each, StepCheckpoints) for each in callbacks)
    trainer = build_trainer(
        spec, Allowed(listed=()), 1, dist.get_world_size(),
        logger=False, enable_checkpointing=keeps, callbacks=callbacks,
    )  # fmt: skip
    loaders = [DataLoader(each, batch_size=None) for each in (data, validation or [])]  # type: ignore[arg-type]
    form(model, spec)
    trainer.fit(model, *loaders, ckpt_path=resume, weights_only=True)
    dist.barrier()  # rank 0 may still name the last checkpoint
    return trainer


def saving_in(folder: Path, every_steps: int = 4) -> StepCheckpoints:
    folder.mkdir(exist_ok=True)
    writer = CheckpointWriter(token="t", before=lambda: None)
    return StepCheckpoints(folder, every_steps=every_steps, prune=lambda: None, writer=writer)


class Block(nn.Module):
    """One layer that is added to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls, self.rate = 0, 0.0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values + nn.functional.dropout(self.linear(values).tanh(), self.rate, self.training)


class Deep(Small):
    """Blocks, trained by Adam, whose state is sharded too."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__(nn.Sequential(Block(), Block(), nn.Linear(16, 1)))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=RATE / 10)


class Own(Deep):
    """Splits its blocks by itself: columns over ranks that get the same samples."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["tensor_parallel"]
        plan = {"0.linear": ColwiseParallel(output_layouts=Replicate()),
                "1.linear": ColwiseParallel(output_layouts=Replicate())}  # fmt: skip
        parallelize_module(self.network, mesh, plan)


def alone_on(data: Batches) -> Deep:
    """Trained by one process, by hand, with gradients clipped at a norm of 0.5."""
    model = Deep()
    optimizer = model.configure_optimizers()
    for batch in data:
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model
