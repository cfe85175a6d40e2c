"""Rendezvous of ranks: on one node by a private file, across nodes at a port of rank 0.

PyTorch's own rendezvous listens on all interfaces without authentication.

`python -m headrace.training.rendezvous ADDRESS:PORT RANK WORLD_SIZE GPUS` tests it before training:
a small all-reduce between nodes, with one process each.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from headrace.steps.networks import interface_of, interfaces
from headrace.training.launch_records import NodeLaunch

if TYPE_CHECKING:  # the test needs no Lightning, whose import takes seconds
    from lightning.pytorch.strategies import ParallelStrategy

_TRIAL_TIMEOUT = timedelta(seconds=60)
_TIMEOUT = timedelta(minutes=30)
"""Lightning's own; `train.hang_timeout` ends what hangs."""


def meet(strategy: ParallelStrategy, launch: NodeLaunch, rank: int) -> None:
    """Join the other ranks before Lightning does; it takes what is there.

    Side effects: makes the default process group.
    """
    device = strategy.root_device
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        getattr(strategy, "process_group_backend", None) or ("nccl" if on_gpu else "gloo"),
        store=_store(launch, rank),
        rank=rank,
        world_size=launch.world_size,
        timeout=_TIMEOUT,
        device_id=device if on_gpu else None,
    )
    # NCCL complains of a group that is left; threads of gloo may meet the interpreter's end
    atexit.register(dist.destroy_process_group)


def _store(launch: NodeLaunch, rank: int) -> Store:
    if launch.num_nodes == 1:
        return FileStore(str(launch.folder.meeting), launch.world_size)
    address = (launch.master_address, launch.master_port)
    store = tcp_store(address, rank, launch.world_size, _TIMEOUT)
    return PrefixStore(launch.secret, store)


def tcp_store(address: tuple[str, int], rank: int, world_size: int, timeout: timedelta) -> Store:
    """A store that rank 0 serves on one network interface alone."""
    host, port = address
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(address, family=family).detach()  # the store closes it
    return TCPStore(
        host, port, world_size, is_master=rank == 0, timeout=timeout, master_listen_fd=listener
    )


def all_reduce_problem(meeting: str, rank: int, world_size: int, num_gpus: int) -> str:
    """Return the problem of an all-reduce; empty if the sum and the number of GPUs are right.

    Side effects: sets gloo's network interface in the environment.
    """
    interface = _interface_to(meeting)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    has_gpus = torch.version.cuda is not None or torch.version.hip is not None
    if has_gpus and torch.cuda.device_count() < num_gpus:
        return f"PyTorch sees {torch.cuda.device_count()} of {num_gpus} GPUs"
    store = tcp_store(_address(meeting), rank, world_size, _TRIAL_TIMEOUT)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=_TRIAL_TIMEOUT
    )
    try:
        value = torch.tensor([rank + 1.0])
        dist.all_reduce(value)
    finally:
        dist.destroy_process_group()
    wanted = world_size * (world_size + 1) / 2
    return "" if value.item() == wanted else f"the sum is {value.item():g}, not {wanted:g}"


def _address(meeting: str) -> tuple[str, int]:
    host, _, port = meeting.rpartition(":")
    return host, int(port)


def _interface_to(meeting: str) -> str | None:
    """Return the network interface to rank 0; the host's name may resolve to loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_address(meeting))  # sends nothing
        address = probe.getsockname()[0]
    return interface_of(address, interfaces())


def main(arguments: list[str]) -> int:
    """Entry point."""
    meeting, *numbers = arguments
    rank, world_size, num_gpus = (int(number) for number in numbers)
    problem = all_reduce_problem(meeting, rank, world_size, num_gpus)
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
