"""The GPUs of this machine that a process may use, and their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.record import Record

NVIDIA, AMD = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
"""Variables that limit a process to some GPUs."""

_AMD_OUTER = "ROCR_VISIBLE_DEVICES"
_DEVICE = re.compile(r"nvidia\d+")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


class Gpu(Record):
    """A GPU, or a part of one (MIG)."""

    name: str
    """Name in a mask: a number, or a UUID, as `GPU-…` or `MIG-…`."""
    uuid: str = ""
    """Identifier that does not depend on masks; empty if unknown."""
    memory_bytes: int | None = None
    """Null if unknown."""

    @property
    def identity(self) -> str:
        """Identifier within this machine."""
        return self.uuid or self.name


def visible_gpus() -> tuple[str, tuple[Gpu, ...]]:
    """Return the variable of masks, and the GPUs that this process may use, by their index."""
    mask, names, nvml = _visible(os.environ)
    return mask, tuple(_gpu(name, nvml) for name in names)


def handles() -> tuple[ModuleType, list[Any]] | None:
    """Return NVML and its handles of the GPUs that this process may use; None if it shows none."""
    _, names, nvml = _visible(os.environ)
    if nvml is None or not names:
        return None
    try:
        return nvml, [_handle(nvml, name) for name in names]
    except nvml.NVMLError:
        return None


def _visible(environment: Mapping[str, str]) -> tuple[str, list[str], ModuleType | None]:
    """Return the variable of masks, names of usable GPUs, and NVML if it works.

    Sources: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars,
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    nvml = _nvml()
    names = list(_of_nvidia(nvml))
    given = environment.get(NVIDIA)
    if names or not (count := _num_amd()):
        return NVIDIA, names if given is None else _named(given), nvml
    outer = environment.get(_AMD_OUTER)  # the GPUs that it leaves are numbered from 0
    names = [str(index) for index in range(count if outer is None else len(_named(outer)))]
    given = environment.get(AMD, given)
    return AMD, names if given is None else _named(given), None


def _named(mask: str) -> list[str]:
    """Return the names in a mask, up to the first invalid one."""
    names = [name.strip() for name in mask.split(",")]
    end = next((at for at, name in enumerate(names) if not name or name.startswith("-")), None)
    return names[:end]


def _nvml() -> ModuleType | None:
    """Return NVIDIA's library, initialised; None without nvidia-ml-py or a driver."""
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
    """Yield the names of all of NVIDIA's GPUs here, or of their parts if they are divided."""
    if nvml is None:
        files = [file.name for file in Path("/dev").glob("nvidia*")]
        yield from (str(n) for n in range(sum(bool(_DEVICE.fullmatch(name)) for name in files)))
        return
    for index in range(nvml.nvmlDeviceGetCount()):
        parts = list(_parts(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        yield from parts or [str(index)]


def _parts(nvml: ModuleType, gpu: object) -> Iterator[str]:
    """Yield the UUIDs of the parts that a GPU is divided into (MIG)."""
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(gpu)[0]
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if is_divided else 0
    except nvml.NVMLError:  # a kind without MIG
        return
    for index in range(count):
        with suppress(nvml.NVMLError):  # there may be fewer parts than the maximum
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            yield str(nvml.nvmlDeviceGetUUID(part))


def _handle(nvml: ModuleType, name: str) -> Any:
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def _gpu(name: str, nvml: ModuleType | None) -> Gpu:
    if nvml is None:
        return Gpu(name=name)
    try:
        handle = _handle(nvml, name)
        size = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return Gpu(name=name, uuid=str(nvml.nvmlDeviceGetUUID(handle)), memory_bytes=size)
    except nvml.NVMLError:
        return Gpu(name=name)


def _num_amd(nodes: Path = _AMD_NODES) -> int:
    """Return the number of AMD's GPUs: nodes of the kernel's topology with SIMD units."""
    texts = [file.read_text() for file in nodes.glob("*/properties")]
    return sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in texts)
