"""How ranks find each other: on one node in a private file, across nodes at a port of rank 0.

PyTorch's own rendezvous listens on all interfaces, and asks nobody who they are.
"""

from __future__ import annotations

import atexit
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

if TYPE_CHECKING:
    from headrace.training.records import RankSpec

_TIMEOUT = timedelta(minutes=30)
"""Lightning's own; `train.hang_timeout` ends what hangs."""


def meet(strategy: Strategy, spec: RankSpec) -> None:
    """Join the other ranks before Lightning does; it takes what is there.

    Side effects: makes the default process group.

    Args:
        strategy: Of the Trainer; one that has no other ranks joins nobody.
        spec: This rank.
    """
    if not isinstance(strategy, ParallelStrategy):
        return
    device = strategy.root_device
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        getattr(strategy, "process_group_backend", None) or ("nccl" if on_gpu else "gloo"),
        store=store_of(spec),
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=_TIMEOUT,
        device_id=device if on_gpu else None,
    )
    if on_gpu:
        atexit.register(dist.destroy_process_group)  # NCCL complains of a group that is left


def store_of(spec: RankSpec) -> Store:
    """Where the ranks of a launch tell each other their addresses."""
    if spec.num_nodes == 1:
        return FileStore(spec.meeting, spec.world_size)
    store = tcp_store(address_of(spec.meeting), spec.rank, spec.world_size, _TIMEOUT)
    return PrefixStore(spec.secret, store)


def address_of(meeting: str) -> tuple[str, int]:
    """IP address and port, of both joined by a colon."""
    host, _, port = meeting.rpartition(":")
    return host, int(port)


def tcp_store(address: tuple[str, int], rank: int, world_size: int, timeout: timedelta) -> Store:
    """A store that rank 0 serves on one network interface alone.

    Args:
        address: IP address and port of rank 0.
        rank: This process.
        world_size: Processes.
        timeout: Longest wait for one another.

    Raises:
        OSError: The port is taken; only on rank 0.
    """
    host, port = address
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(address, family=family).detach()  # the store closes it
    return TCPStore(
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener,
    )
