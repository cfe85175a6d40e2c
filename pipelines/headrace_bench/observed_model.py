"""A small network that records how it was trained: form of its weights, backend, losses."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from headrace.files.atomic import write_record
from headrace.record import Figures

SIDE = 32
"""Height and width of its pictures."""

NUM_CLASSES = 10


class Observed(Figures):
    """Properties of a training, recorded by its first rank."""

    device: str
    world_size: int
    backend: str
    """Of the process group, such as `nccl`; empty without one."""
    output_dtype: str
    """Data type of the outputs, such as `torch.bfloat16`."""
    is_compiled: bool
    """Whether `torch.compile` has made a graph."""
    is_channels_last: bool
    is_sharded: bool
    """Whether weights are distributed over the ranks."""
    has_sync_batchnorm: bool
    is_same_on_all_ranks: bool
    """Whether all ranks have the same weights at the end."""
    losses: tuple[float, ...]
    """Losses of each step since the last start, mean over ranks."""


class ObservedNet(LightningModule):  # type: ignore[misc]
    """Memorises the labels of pictures `(batch, 32, 32, 3) uint8`.

    Args:
        file: File for `Observed`, written by the first rank at the end.
        dies_after: Steps after which the first rank kills itself (SIGKILL), once; 0 for never.
        dropout: Share of random features left out in each step.
    """

    def __init__(self, file: str, dies_after: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * (SIDE // 4) ** 2, NUM_CLASSES),
        )  # fmt: skip
        self._file, self._dies_after = Path(file), dies_after
        self._losses: list[Tensor] = []
        self._output_dtype: torch.dtype | None = None

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        del index
        pictures = batch["image"].permute(0, 3, 1, 2).float() / 255
        scores = self.network(pictures)
        self._output_dtype = scores.dtype
        loss = cross_entropy(scores.float(), batch["label"] % NUM_CLASSES)
        self._losses.append(self.all_gather(loss.detach()).mean())
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        """Kill this process if requested."""
        died = self._file.with_suffix(".died")
        if self.global_rank or self.global_step != self._dies_after or died.exists():
            return
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self) -> None:
        """Write the file."""
        weights = [
            each.full_tensor() if isinstance(each, DTensor) else each for each in self.parameters()
        ]
        digest = torch.stack([weight.detach().double().abs().sum() for weight in weights])
        on_ranks = self.all_gather(digest).view(-1, len(weights))
        dynamo = sys.modules.get("torch._dynamo.utils")  # takes a second to import
        has_group = dist.is_initialized()
        observed = Observed(
            device=self.device.type,
            world_size=dist.get_world_size() if has_group else 1,
            backend=dist.get_backend() if has_group else "",
            output_dtype=str(self._output_dtype),
            is_compiled=bool(dynamo and dynamo.counters["stats"]["unique_graphs"]),
            is_channels_last=weights[0].is_contiguous(memory_format=torch.channels_last),
            is_sharded=any(isinstance(each, DTensor) for each in self.parameters()),
            has_sync_batchnorm=any(isinstance(each, nn.SyncBatchNorm) for each in self.modules()),
            is_same_on_all_ranks=bool((on_ranks == on_ranks[0]).all()),
            losses=tuple(torch.stack(self._losses).tolist()),
        )
        if self.global_rank == 0:
            write_record(self._file, observed)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
