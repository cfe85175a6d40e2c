"""Which GPUs a node has for trials, and by what a process is told those that are its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from headrace.errors import LeaseError
from headrace.suites import node_slots
from headrace.suites.node_slots import Gpu, NodeCapacity, capacity, part_of

GIB = 2**30


def nvml(parts: dict[int, list[str]], count: int = 2) -> ModuleType:
    """A driver with so many GPUs of 80 GiB, of which some are divided."""

    class NVMLError(Exception):
        pass

    def mode(gpu: int) -> list[int]:
        if gpu not in parts:
            raise NVMLError("Not Supported")
        return [1, 1]

    def part(gpu: int, place: int) -> str:
        if place >= len(parts[gpu]):
            raise NVMLError("Not Found")
        return parts[gpu][place]

    def memory(handle: int | str) -> SimpleNamespace:
        if handle == "GPU-gone":
            raise NVMLError("Not Found")
        return SimpleNamespace(total=(10 if str(handle).startswith("MIG") else 80) * GIB)

    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetMemoryInfo=memory,
    )
    return module


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    capacity.cache_clear()
    yield
    capacity.cache_clear()


@pytest.mark.parametrize(
    ("mask", "parts", "found"),
    [
        (None, {}, ["0", "1"]),
        (None, {1: ["MIG-a", "MIG-b"]}, ["0", "MIG-a", "MIG-b"]),
        ("1", {}, ["1"]),
        ("GPU-b, MIG-c", {}, ["GPU-b", "MIG-c"]),
        ("1,-1,0", {}, ["1"]),
        ("", {}, []),
    ],
)
def test_nvidias_gpus_are_those_that_the_workers_mask_leaves(monkeypatch, mask, parts, found):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(parts))
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    node = capacity()
    assert [gpu.name for gpu in node.gpus] == found
    for gpu in node.gpus:
        assert gpu.memory_bytes == (10 if gpu.name.startswith("MIG") else 80) * GIB


def test_a_gpu_that_the_driver_does_not_know_has_no_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-gone")
    assert capacity().gpus == (Gpu(name="GPU-gone"),)


@pytest.mark.parametrize(
    ("masks", "found"),
    [
        ({}, ["0", "1", "2"]),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["0"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
    ],
)
def test_amds_gpus_are_masked_by_their_own_variable(monkeypatch, tmp_path: Path, masks, found):
    for place, simd in enumerate((0, 304, 304, 304)):  # the first node is the CPU
        (tmp_path / str(place)).mkdir()
        (tmp_path / str(place) / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\n")
    count = node_slots._num_amd(tmp_path)
    monkeypatch.setattr(node_slots, "_num_amd", lambda: count)
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    node = capacity()
    assert [gpu.name for gpu in node.gpus] == found
    assert part_of(node, (0,), (), None)["HIP_VISIBLE_DEVICES"] == found[0]


def test_a_part_of_a_node_is_named_to_processes():
    gpus = tuple(Gpu(name=name) for name in ("4", "MIG-b"))
    node = NodeCapacity(machine="gpu-7", gpus=gpus, cpus=(0, 1), memory_bytes=8 * GIB)
    assert part_of(node, (1, 0), (2, 5), GIB) == {
        "CUDA_VISIBLE_DEVICES": "MIG-b,4",
        "HEADRACE_CPUS": "2,5",
        "HEADRACE_MEMORY_BYTES": str(GIB),
    }
    assert part_of(node, (0,), (), None)["HEADRACE_MEMORY_BYTES"] == "0"
    assert part_of(node, (), (), None) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "HEADRACE_MEMORY_BYTES": str(8 * GIB),
    }
    with pytest.raises(LeaseError, match="GPU 2 was given out, but the node has 2"):
        part_of(node, (0, 2), (), None)
