"""What a node has for trials: its GPUs and CPUs, and how one is given a part of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from headrace.clusters.gpus import AMD, NVIDIA, Gpu, visible_gpus
from headrace.clusters.preflight import node_name
from headrace.files.machine import available_memory_bytes
from headrace.processes.identity import CPUS, MEMORY
from headrace.record import Record

_NONE = "-1"


class NodeCapacity(Record):
    """What this node, as far as its Dask worker may use it, has for trials."""

    machine: str
    """What it is called where it comes from, such as an instance's id."""
    gpus: tuple[Gpu, ...] = ()
    """By their places."""
    mask: str = NVIDIA
    """The variable that names those which a process may use."""
    cpus: tuple[int, ...]
    """CPUs, by the worker's affinity."""
    memory_bytes: int
    """Memory that was free when this was first asked."""


@cache
def capacity() -> NodeCapacity:
    """What this node has; looked up once in a process, best before anything runs there."""
    mask, gpus = visible_gpus()
    return NodeCapacity(
        machine=node_name(),
        gpus=gpus,
        mask=mask,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory_bytes=available_memory_bytes(),
    )


def part_of(node: NodeCapacity, gpus: Sequence[Gpu], cpus: Sequence[int]) -> dict[str, str]:
    """Environment of processes that keep to a part of a node.

    With GPUs they have no limit of memory, as drivers of these may reserve more than there is;
    without, each of them may ask for all that the node has.

    Args:
        node: What the node has.
        gpus: GPUs that they may use; without any they see none.
        cpus: CPUs that they may use; empty for the worker's.
    """
    names = ",".join(gpu.name for gpu in gpus)
    masks = {node.mask: names} if names else dict.fromkeys((NVIDIA, AMD), _NONE)
    pinned = {CPUS: ",".join(str(cpu) for cpu in cpus)} if cpus else {}
    return {**masks, **pinned, MEMORY: str(0 if gpus else node.memory_bytes)}
