"""A small all-reduce between nodes, one process each, before any training.

`python -m headrace.training.all_reduce ADDRESS:PORT RANK WORLD_SIZE GPUS`
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from headrace.training.launch import interface_of
from headrace.training.meeting import address_of, tcp_store

_TIMEOUT = timedelta(seconds=60)


def problem(meeting: str, rank: int, world_size: int, num_gpus: int) -> str:
    """What is wrong; empty when the sum over all ranks is right and the GPUs are seen.

    Side effects: names the network interface to gloo, in the environment.

    Args:
        meeting: Address and port of rank 0.
        rank: This process.
        world_size: Processes, one a node.
        num_gpus: Accelerators that PyTorch must see here, if it is built for any.

    Raises:
        RuntimeError: The ranks did not find each other in time.
    """
    interface = _interface_to(meeting)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    has_gpus = torch.version.cuda is not None or torch.version.hip is not None
    if has_gpus and torch.cuda.device_count() < num_gpus:
        return f"PyTorch sees {torch.cuda.device_count()} of {num_gpus} GPUs"
    store = tcp_store(address_of(meeting), rank, world_size, _TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    try:
        value = torch.tensor([rank + 1.0])
        dist.all_reduce(value)
    finally:
        dist.destroy_process_group()
    wanted = world_size * (world_size + 1) / 2
    return "" if value.item() == wanted else f"the sum is {value.item():g}, not {wanted:g}"


def _interface_to(meeting: str) -> str | None:
    """Network interface that leads to rank 0; the host's name may resolve to loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address_of(meeting))  # sends nothing
        address = probe.getsockname()[0]
    found = psutil.net_if_addrs().items()
    return interface_of(address, {name: [each.address for each in at] for name, at in found})


def main(arguments: list[str]) -> int:
    """Entry point."""
    meeting, *numbers = arguments
    rank, world_size, num_gpus = (int(number) for number in numbers)
    told = problem(meeting, rank, world_size, num_gpus)
    if told:
        sys.stderr.write(f"{told}\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
