"""Messages between ranks: point to point and all-reduce, with gloo, and with NCCL on GPUs.

Bandwidth of all-reduce is that of the bus, 2 (n - 1) / n times the bytes of a rank over the time:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]

from headrace.files.machine import available_memory_bytes
from headrace.steps.networks import interface_of, interfaces, network_environment
from headrace_probes.probe_records import Findings, Measurement, ProbeRequest

_TIMEOUT = timedelta(seconds=120)
_LEAST_S, _MOST_S = 0.02, 1.0
"""A repeat takes at least the first time; if a message takes more than the second, no larger ones
are sent."""

_SIZES = (8, 2**10, 2**15, 2**20, 2**25, 2**28, 2**30)
_QUICK = (8, 2**15, 2**20)
_LATENCY_BYTES = 1024
"""Messages up to this size are reported as a latency."""


def measure(request: ProbeRequest) -> Findings:
    """Measure latency and bandwidth of ranks 0 and 1, and of all together; rank 0 returns them."""
    found: list[Measurement] = []
    for backend in ("gloo", *(("nccl",) if has_gpus(request) else ())):
        with_gpu = backend == "nccl"
        device = torch.device("cuda", request.local_rank) if with_gpu else torch.device("cpu")
        join(request, backend)
        try:
            found += _of_backend(request, backend, device)
        finally:
            dist.destroy_process_group()
    return Findings(measurements=tuple(found) if request.rank == 0 else ())


def join(request: ProbeRequest, backend: str) -> None:
    """Connect to the other ranks, over the network interface of this node's address.

    Side effects: makes the default process group; names the interface in the environment.
    """
    os.environ |= network_environment(interface_of(request.host, interfaces()))
    store = FileStore(f"{request.meeting}-{backend}", request.world_size)
    dist.init_process_group(
        backend, store=store, rank=request.rank, world_size=request.world_size, timeout=_TIMEOUT
    )


def link_gb_per_s(interface: str | None, classes: Path = Path("/sys/class/net")) -> float | None:
    """Return the GB/s of a network interface's link; None if unknown, as for the loopback."""
    if interface is None:
        return None
    try:
        megabits = int((classes / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits / 8e3 if megabits > 0 else None


def has_gpus(request: ProbeRequest) -> bool:
    """Whether each rank of this node has its own GPU; the result is the same on all ranks."""
    return torch.cuda.device_count() >= request.ranks_per_node and dist.is_nccl_available()


def _of_backend(request: ProbeRequest, backend: str, device: torch.device) -> Iterator[Measurement]:
    kinds: dict[str, Callable[[Tensor], None]] = {
        "point to point": lambda buffer: _ping_pong(buffer, request.rank),
        "all-reduce": lambda buffer: dist.all_reduce(buffer),
    }
    interface = interface_of(request.host, interfaces())
    link = link_gb_per_s(interface) if request.local_rank == 0 and backend == "gloo" else None
    for kind, act in kinds.items():
        for size in _sizes(request):
            seconds, is_enough = _timed(request, act, size, device)
            trip = 2 if kind == "point to point" else 1
            yield _made(request, f"{kind} by {backend}", size, [s / trip for s in seconds], link)
            if is_enough:
                break


def _sizes(request: ProbeRequest) -> tuple[int, ...]:
    """Return sizes that fit into an eighth of the memory of the smallest node."""
    fits = torch.tensor([available_memory_bytes() // 8 // request.world_size], dtype=torch.int64)
    if dist.get_backend() == "gloo":
        dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    sizes = _QUICK if request.options.quick else _SIZES
    return tuple(size for size in sizes if size <= int(fits))


def _timed(
    request: ProbeRequest, act: Callable[[Tensor], None], size: int, device: torch.device
) -> tuple[list[float], bool]:
    """Return the seconds of one act per repeat, and whether larger messages would be too slow."""
    buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)
    act(buffer)  # connects
    first_s = _run(act, buffer, 1)
    number = torch.tensor([max(int(_LEAST_S / first_s), 1)], device=device)
    dist.broadcast(number, 0)
    seconds = torch.tensor(
        [_run(act, buffer, int(number)) for _ in range(request.options.repeats)],
        dtype=torch.float64,
        device=device,
    )
    dist.broadcast(seconds, 0)
    found = [float(each) for each in seconds]
    return found, min(found) > _MOST_S


def _run(act: Callable[[Tensor], None], buffer: Tensor, number: int) -> float:
    dist.barrier()
    if buffer.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        act(buffer)
    if buffer.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / number


def _ping_pong(buffer: Tensor, rank: int) -> None:
    if rank == 0:
        dist.send(buffer, 1)
        dist.recv(buffer, 1)
    elif rank == 1:
        dist.recv(buffer, 0)
        dist.send(buffer, 0)


def _made(
    request: ProbeRequest, name: str, size: int, seconds: list[float], link: float | None
) -> Measurement:
    is_latency = size <= _LATENCY_BYTES
    factor = 2 * (request.world_size - 1) / request.world_size if "reduce" in name else 1.0
    values = (each * 1e6 if is_latency else factor * size / each / 1e9 for each in seconds)
    return Measurement(
        part="network",
        name=f"{name}, {_words(size)}",
        settings=f"{request.world_size} ranks",
        unit="us" if is_latency else "GB/s",
        values=tuple(values),
        lower_is_better=is_latency,
        message_bytes=size,
        limit=None if is_latency else link,
        limit_source="" if is_latency or link is None else "speed of the interface's link",
    )


def _words(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
