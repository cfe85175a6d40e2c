"""Which GPUs of a machine a process may use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from headrace.clusters import gpus
from headrace.clusters.gpus import Gpu, visible_gpus

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
        nvmlDeviceGetUUID=lambda gpu: gpu if isinstance(gpu, str) else f"UUID-{gpu}",
        nvmlDeviceGetMemoryInfo=memory,
    )
    return module


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)


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
    _, seen = visible_gpus()
    assert [gpu.name for gpu in seen] == found
    for gpu in seen:
        assert gpu.memory_bytes == (10 if gpu.name.startswith("MIG") else 80) * GIB
        assert gpu.identity == (gpu.name if gpu.name[0] in "GM" else f"UUID-{gpu.name}")


def test_a_gpu_that_the_driver_does_not_know_has_no_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml({}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-gone")
    assert visible_gpus()[1] == (Gpu(name="GPU-gone"),)


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
    count = gpus._num_amd(tmp_path)
    monkeypatch.setattr(gpus, "_num_amd", lambda: count)
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    mask, seen = visible_gpus()
    assert (mask, [gpu.name for gpu in seen]) == ("HIP_VISIBLE_DEVICES", found)
