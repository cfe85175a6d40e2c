"""What a node has for trials: its GPUs, CPUs and memory, and how one is given a part of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from headrace.clusters.preflight import node_name
from headrace.errors import LeaseError
from headrace.files.machine import available_memory_bytes
from headrace.processes import CPUS, MEMORY
from headrace.record import Record

NVIDIA, AMD = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
"""Variables that tell a process which GPUs it may use."""

_NONE = "-1"
_AMD_OUTER = "ROCR_VISIBLE_DEVICES"
_DEVICE = re.compile(r"nvidia\d+")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


class Gpu(Record):
    """A GPU, or a part of one (MIG)."""

    name: str
    """What names it in a mask: a number, or a UUID such as `GPU-…` or `MIG-…`."""
    memory_bytes: int | None = None
    """Null where nobody tells."""


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
    mask, names, nvml = _visible(os.environ)
    return NodeCapacity(
        machine=node_name(),
        gpus=tuple(Gpu(name=name, memory_bytes=_memory_bytes(name, nvml)) for name in names),
        mask=mask,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory_bytes=available_memory_bytes(),
    )


def part_of(
    node: NodeCapacity, gpus: Sequence[int], cpus: Sequence[int], memory_bytes: int | None
) -> dict[str, str]:
    """Environment of processes that keep to a part of a node.

    Args:
        node: What the node has.
        gpus: Places of GPUs that they may use; without any they see none.
        cpus: CPUs that they may use; empty for the worker's.
        memory_bytes: The most that each of them may ask for; None for all that the node has, and
            with GPUs for no limit, as drivers of these may reserve more than there is.

    Raises:
        LeaseError: The node has no such GPU.
    """
    missing = [place for place in gpus if place >= len(node.gpus)]
    if missing:
        raise LeaseError(f"GPU {missing[0]} was given out, but the node has {len(node.gpus)}")
    names = ",".join(node.gpus[place].name for place in gpus)
    masks = {node.mask: names} if names else dict.fromkeys((NVIDIA, AMD), _NONE)
    pinned = {CPUS: ",".join(str(cpu) for cpu in cpus)} if cpus else {}
    most = memory_bytes or (0 if gpus else node.memory_bytes)
    return {**masks, **pinned, MEMORY: str(most)}


def _visible(environment: Mapping[str, str]) -> tuple[str, list[str], ModuleType | None]:
    """The variable of masks, names of the GPUs that the worker may use, and NVML where it works.

    Sources: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars,
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    nvml = _nvml()
    names = list(_of_nvidia(nvml))
    given = environment.get(NVIDIA)
    if names or not (count := _num_amd()):
        return NVIDIA, names if given is None else _named(given), nvml
    outer = environment.get(_AMD_OUTER)  # those that it leaves are counted anew
    names = [str(place) for place in range(count if outer is None else len(_named(outer)))]
    given = environment.get(AMD, given)
    return AMD, names if given is None else _named(given), None


def _named(mask: str) -> list[str]:
    """Names in a mask, up to one that names nothing."""
    names = [name.strip() for name in mask.split(",")]
    end = next((at for at, name in enumerate(names) if not name or name.startswith("-")), None)
    return names[:end]


def _nvml() -> ModuleType | None:
    """NVIDIA's library, ready; None without nvidia-ml-py or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found: ModuleType = pynvml
    return found


def _of_nvidia(nvml: ModuleType | None) -> Iterator[str]:
    """Names of all of NVIDIA's GPUs here, and of their parts where they are divided."""
    if nvml is None:
        files = [file.name for file in Path("/dev").glob("nvidia*")]
        yield from (str(n) for n in range(sum(bool(_DEVICE.fullmatch(name)) for name in files)))
        return
    for index in range(nvml.nvmlDeviceGetCount()):
        parts = list(_parts(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        yield from parts or [str(index)]


def _parts(nvml: ModuleType, gpu: object) -> Iterator[str]:
    """UUIDs of the parts that a GPU is divided into (MIG)."""
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(gpu)[0]
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if is_divided else 0
    except nvml.NVMLError:  # a kind that cannot be
        return
    for place in range(count):
        with suppress(nvml.NVMLError):  # fewer parts than there may be
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            yield str(nvml.nvmlDeviceGetUUID(part))


def _memory_bytes(name: str, nvml: ModuleType | None) -> int | None:
    if nvml is None:
        return None
    try:
        if name.isdecimal():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            handle = nvml.nvmlDeviceGetHandleByUUID(name)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        return None


def _num_amd(nodes: Path = _AMD_NODES) -> int:
    """Number of AMD's GPUs: those nodes of the kernel's topology that have SIMD units."""
    texts = [file.read_text() for file in nodes.glob("*/properties")]
    return sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in texts)
