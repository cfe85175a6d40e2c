"""What changes weights or their steps, and a DataModule of Lightning, as `CHECKS` of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from headrace.data.dataset import SampleDataset
from headrace.data.instantiate import Allowed, instantiate
from headrace.errors import TargetError
from headrace.recipe.load import parse
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpoint_callbacks import KeepBest
from support.scale_models import (
    RATE,
    Block,
    Deep,
    Notes,
    Small,
    batches,
    check,
    fit,
    flat,
    joint,
    saving_in,
)
from support.shards import write_dataset


@check
def averaged(folder: Path) -> dict[str, Any]:
    """A moving average of the weights: what is validated, saved, kept as the best, resumed."""
    mine, notes, model = batches(dist.get_rank(), 6), Notes(), Small()
    keys = {"ema": {"decay": 0.8, "every": 2}, "monitor": "val"}
    saving = saving_in(folder / "ema")
    best = KeepBest(saving, parse(TrainerSpec, keys, "test"))
    fit(model, mine, keys, callbacks=[notes, best, saving], validation=mine[:1])
    resumed, path = Small(), saving.folder / "step-000000004.ckpt"
    fit(resumed, mine[4:] + mine[:4], keys, resume=path)
    saved = {"final": saving.final, "best": saving.folder / "best-000000006.ckpt", "fourth": path}
    return {
        "weights": notes.weights,
        "validated": model.validated,
        "final": flat(model),
        "resumed": flat(resumed),
        "saved": {name: _weights_in(file) for name, file in saved.items()},
    }


def _weights_in(file: Path) -> Tensor:
    state = torch.load(file, weights_only=True)["state_dict"]
    return torch.cat([each.flatten() for each in state.values()])


class Decaying(Small):
    """Halves its learning rate after each step, from the rate before."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@check
def scaled_rates(folder: Path) -> dict[str, Any]:
    """Learning rates as the weights show them, and as they are saved."""
    mine, found = batches(dist.get_rank(), 6), {}
    for rule in ("linear", "sqrt"):
        keys = {"scale_lr": {"base_batch_size": 2, "rule": rule, "warmup_steps": 3}}
        notes, model, saving = Notes(), Decaying(), saving_in(folder / rule)
        begun = flat(model)
        fit(model, mine, keys, callbacks=[notes, saving])
        path = saving.folder / "step-000000004.ckpt"
        after = Notes()
        fit(Decaying(), mine[4:] + mine[:4], keys, callbacks=[after], resume=path)
        group = torch.load(path, weights_only=True)["optimizer_states"][0]["param_groups"][0]
        found[rule] = {
            "rates": _rates([begun, *notes.weights], notes.gradients),
            "resumed": _rates([notes.weights[3], *after.weights], after.gradients),
            "saved": group["lr"],
        }
    return found


class Optimized(Small):
    """Takes its optimizer from the recipe."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__()
        self.optimizer = optimizer

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


LARGE = {
    "LARS": {"lr": 2.0, "momentum": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.02},
    "Lamb": {"lr": 0.05, "weight_decay": 0.1, "weight_decouple": False, "adam_debias": True},
}
"""Optimizers of large batches, with their options."""


@check
def large_batches(folder: Path) -> dict[str, Any]:
    """Weights after four steps by optimizers that are named, and after a resume; refusals."""
    mine, found, told = batches(dist.get_rank(), 4), {}, []
    for name, options in LARGE.items():
        optimizer = {"_target_": f"pytorch_optimizer.{name}", "_partial_": True, **options}
        target = {"_target_": "support.scale_weights.Optimized", "optimizer": optimizer}
        try:
            instantiate(target, Allowed(listed=("support",)), "model")
        except TargetError as error:
            told.append(str(error))
        allowed = Allowed(listed=("support", "pytorch_optimizer"))
        saving, model = saving_in(folder / name, 2), instantiate(target, allowed, "model")
        begun = model.state_dict()
        weights = {key: value.clone() for key, value in begun.items()}
        fit(model, mine, {}, callbacks=[saving])
        resumed, path = instantiate(target, allowed, "model"), saving.folder / "step-000000002.ckpt"
        fit(resumed, mine[2:] + mine[:2], {}, resume=path)
        found[name] = {
            "begun": weights,
            "weights": model.state_dict(),
            "resumed": resumed.state_dict(),
        }
    return {"found": found, "told": told, "batches": joint(4)}


class Told(Small):
    """Has a rate that Lightning's finder may set."""

    def __init__(self, lr: float = RATE) -> None:
        super().__init__()
        self.lr = lr

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@check
def found_rates(_: Path) -> dict[str, Any]:
    """Weights after an epoch with a rate that was looked for, and with it from the start."""
    mine, model = batches(dist.get_rank(), 20), Told()
    finder = LearningRateFinder(min_lr=1e-3, max_lr=0.5, num_training_steps=18)
    fit(model, mine, {}, callbacks=[finder])
    again = Told(model.lr)
    fit(again, mine, {})
    return {"rate": model.lr, "found": flat(model), "wanted": flat(again)}


def _rates(weights: list[Tensor], gradients: list[Tensor]) -> list[float]:
    """Step sizes of plain SGD."""
    moved = [before - after for before, after in pairwise(weights)]
    return [float(m @ g / (g @ g)) for m, g in zip(moved, gradients, strict=True)]


class Convolved(nn.Module):
    """Two convolutions over vectors taken as pictures; notes the layout between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 3)
        self.last, self.layouts = nn.Linear(8, 1), set[bool]()

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values.view(-1, 1, 4, 4))
        self.layouts.add(hidden.is_contiguous(memory_format=torch.channels_last))
        result: Tensor = self.last(self.second(hidden.relu()).flatten(1))
        return result


def _with_chance() -> Deep:
    model = Deep()
    for block in (model.network[0], model.network[1]):  # type: ignore[index]
        block.rate = 0.5  # type: ignore[union-attr]
    return model


@check
def forms(folder: Path) -> dict[str, Any]:
    """Losses of three steps, and names of weights, of models that compute in other ways."""
    mine, found = batches(dist.get_rank(), 3), {}
    makers = {
        "plain": (_with_chance, {}),
        "recomputed": (_with_chance, {"activation_checkpointing": ["Block"]}),
        "recomputed_sharded": (
            _with_chance,
            {
                "activation_checkpointing": ["Block"],
                "strategy": "fsdp",
                "fsdp": {"wrap": ["Block"]},
            },
        ),
        "compiled": (_with_chance, {"compile": {"backend": "eager"}}),
        "convolved": (lambda: Small(Convolved()), {}),
        "channels_last": (lambda: Small(Convolved()), {"channels_last": True}),
    }
    for name, (make, keys) in makers.items():
        saving, model = saving_in(folder / name), make()
        torch.manual_seed(5)  # of what is dropped
        fit(model, mine, keys, callbacks=[saving])
        found[name] = {
            "losses": model.losses,
            "calls": [m.calls for m in model.modules() if isinstance(m, Block)],
            "layouts": getattr(model.network, "layouts", None),
            "saved": torch.load(saving.final, weights_only=True)["state_dict"],
        }
    graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return {"found": found, "graphs": graphs}


class Backwards(Sampler[int]):
    """Knows nothing of ranks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter(range(self.count - 1, -1, -1))


class Samples(LightningDataModule):
    """Loaders as one writes them."""

    def __init__(self, folder: Path, own: bool) -> None:
        super().__init__()
        self.folder, self.own = folder, own

    def train_dataloader(self) -> Any:
        samples = SampleDataset(self.folder, "train")
        sampling: dict[str, Any] = {"sampler": Backwards(len(samples))} if self.own else {}
        return DataLoader(samples, 4, shuffle=None if self.own else True, **sampling)

    def val_dataloader(self) -> Any:
        return DataLoader(SampleDataset(self.folder, "val"), 4)


class Seeing(Small):
    """Notes which samples it got."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {"train": [], "val": []}

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:  # type: ignore[override]
        self.seen["train"] += batch["sample_id"].tolist()
        return super().training_step((batch["array"], batch["array"][:, :1]), index)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        del index
        self.seen["val"] += batch["sample_id"].tolist()


@check
def datamodule(folder: Path) -> dict[str, Any]:
    """Samples of two epochs and validations, with Lightning's own Trainer."""
    place, found = folder / "samples", {}
    if dist.get_rank() == 0:
        values = np.random.default_rng(1).normal(size=(25, 16)).astype(np.float32)
        write_dataset(place, {"array": values}, splits={"train": 20, "val": 5}, shard_samples=6)
    dist.barrier()
    for own in (False, True):
        torch.manual_seed(dist.get_rank())  # ranks agree all the same
        model = Seeing()
        trainer = Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, num_sanity_val_steps=0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, datamodule=Samples(place, own))
        found[own] = model.seen
    return {"found": found}
