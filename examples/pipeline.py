"""Trains a language model of bytes in stages, a rank each, by `torch.distributed.pipelining`.

`pipeline.yaml` runs it. Each batch is cut into micro-batches that follow each other through the
stages; all ranks see the same batches: the first takes the input, the last one the target.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from headrace import script

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Embed(nn.Module):
    """Vectors `(batch, length, width)` of bytes `(batch, length)`."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(length, width)

    def forward(self, line: Tensor) -> Tensor:
        """Embed bytes and their places."""
        return self.byte(line) + self.place(torch.arange(line.shape[1], device=line.device))


class Block(nn.TransformerEncoderLayer):
    """A block of attention to earlier bytes only."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, vectors: Tensor) -> Tensor:  # type: ignore[override]
        """Change vectors `(batch, length, width)`."""
        length = vectors.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=vectors.device)
        return super().forward(vectors, src_mask=mask, is_causal=True)


def whole_model(length: int = 64, width: int = 64, num_blocks: int = 4) -> nn.Sequential:
    """The model in one piece; the same weights on all ranks."""
    torch.manual_seed(int(os.environ.get("HEADRACE_SEED", "0")))
    blocks = [Block(width) for _ in range(num_blocks)]
    return nn.Sequential(Embed(length, width), *blocks, nn.Linear(width, 256))


def part_of(model: nn.Sequential, stage: int, num_stages: int) -> nn.Sequential:
    """Modules of one stage, about equally many each, under their names in the whole model."""
    first, end = (len(model) * number // num_stages for number in (stage, stage + 1))
    return model[first:end]


def loss_of(scores: Tensor, target: Tensor) -> Tensor:
    """Mean loss of the bytes of a micro-batch."""
    return cross_entropy(scores.flatten(0, 1), target.flatten())


class Pipeline:
    """This rank's stage, and its place in the schedule.

    Args:
        name: Of the schedule.
        micro_batches: A batch, which must be divisible by them.
    """

    def __init__(self, name: str, micro_batches: int) -> None:
        self.rank, self.num_stages = dist.get_rank(), dist.get_world_size()
        self.part = part_of(whole_model(), self.rank, self.num_stages)
        stage = PipelineStage(self.part, self.rank, self.num_stages, torch.device("cpu"))
        self._schedule = SCHEDULES[name](stage, micro_batches, loss_fn=loss_of)

    def gradients(self, lines: Tensor) -> Tensor:
        """Add the gradients of lines `(batch, length + 1)`; gives the mean loss to all ranks."""
        last, losses = self.num_stages - 1, list[Tensor]()
        inputs = (lines[:, :-1],) if self.rank == 0 else ()
        target = {"target": lines[:, 1:], "losses": losses} if self.rank == last else {}
        self._schedule.step(*inputs, **target)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, src=last)
        return loss

    def save(self, optimizer: torch.optim.Optimizer, epoch: int, step: int) -> None:
        """Rank 0 writes the whole model, and the state of each stage's optimizer."""
        parts = [None] * self.num_stages
        mine = (self.part.state_dict(), optimizer.state_dict())
        dist.gather_object(mine, parts if self.rank == 0 else None)
        if self.rank != 0:
            return
        model = {name: value for weights, _ in parts for name, value in weights.items()}
        states = [state for _, state in parts]
        with script.saving(f"epoch-{epoch}.pt") as path:
            torch.save({"model": model, "optimizers": states, "epoch": epoch, "step": step}, path)

    def load(self, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
        """Take this stage's share of the newest checkpoint; gives epochs and steps done."""
        found = script.newest()
        if found is None:
            return 0, 0
        saved = torch.load(found, weights_only=True)
        self.part.load_state_dict({name: saved["model"][name] for name in self.part.state_dict()})
        optimizer.load_state_dict(saved["optimizers"][self.rank])
        return saved["epoch"], saved["step"]


def batches_of(epoch: int, size: int) -> Iterator[Tensor]:
    """Lines of an epoch `(size, length + 1) int64`, the same on all ranks."""
    seed = torch.Generator().manual_seed(int(os.environ["HEADRACE_SEED"]) * 10_000 + epoch)
    lines = script.dataset("train", fields=["array"])
    for batch in DataLoader(lines, size, shuffle=True, drop_last=True, generator=seed):
        yield batch["array"].long()


def main() -> None:
    """Train, with a checkpoint after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    pipeline = Pipeline(options.schedule, options.micro_batches)
    optimizer = torch.optim.AdamW(pipeline.part.parameters(), lr=2e-3)
    first, step = pipeline.load(optimizer)
    for epoch in range(first, options.epochs):
        for lines in batches_of(epoch, options.batch):
            optimizer.zero_grad()
            loss = pipeline.gradients(lines)
            optimizer.step()
            step += 1
            script.report(step, epoch, samples=step * options.batch, loss=loss)
        pipeline.save(optimizer, epoch + 1, step)
        if script.stop_asked():
            script.pause(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
