"""The plain DDP loop that headrace is compared with: `torchrun -m headrace_bench.bare_loop …`.

Arguments: file for the times, steps, samples per batch and rank, side of the pictures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.timed_model import StepTimes
from headrace_probes.training import loss_of, make_optimizer, resnet50


def main(arguments: list[str]) -> None:
    """Train on shuffled batches of pictures in memory."""
    file, (steps, batch_size, side) = Path(arguments[0]), map(int, arguments[1:])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, count = dist.get_rank(), steps * batch_size
    images = torch.from_numpy(
        random_samples(SampleShape(side=side, num_samples=count, batch_size=batch_size))
    )
    labels = torch.arange(count)
    network = DistributedDataParallel(resnet50().to(device))
    optimizer = make_optimizer(network)
    times = StepTimes(file, steps, device) if rank == 0 else None
    for chosen in torch.randperm(count).view(steps, batch_size):
        optimizer.zero_grad()
        torch.autograd.backward(
            loss_of(network, images[chosen].to(device), labels[chosen].to(device))
        )
        optimizer.step()
        if times is not None:
            times.step_ended()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
