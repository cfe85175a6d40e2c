"""Matrix products with PyTorch, on the CPU and on each GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from headrace.training.machine_facts import machine_facts
from headrace_probes.limits import Cpu, cpu_of, cpu_peak, gpu_peak
from headrace_probes.probe_records import Findings, Measurement, ProbeRequest

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_LEAST_S = 0.1
"""A repeat multiplies as often as fits into this time, seconds; at least once."""


def measure(request: ProbeRequest) -> Findings:
    """Measure the GFLOP/s of square products; 2 n^3 operations each."""
    return Findings(
        measurements=tuple(
            _measured(request, device, dtype) for device in devices() for dtype in _DTYPES
        ),
        machines={request.node: machine_facts()},
    )


def devices() -> tuple[str, ...]:
    """Return the CPU, and the GPUs that this process may use."""
    return ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count())))


def _measured(request: ProbeRequest, device: str, dtype: str) -> Measurement:
    on_gpu = device != "cpu"
    side = (1024 if on_gpu else 256) if request.options.quick else (8192 if on_gpu else 2048)
    left, right = (torch.rand(side, side, dtype=_DTYPES[dtype], device=device) for _ in range(2))
    out = torch.empty_like(left)
    timer = Timer(
        "torch.mm(left, right, out=out)",
        globals={"torch": torch, "left": left, "right": right, "out": out},
        num_threads=request.cores,
    )
    number = max(int(_LEAST_S / timer.timeit(1).mean), 1)
    timer.timeit(number)  # warm-up
    seconds = [timer.timeit(number).mean for _ in range(request.options.repeats)]
    name = torch.cuda.get_device_name(device) if on_gpu else ""
    peak = gpu_peak(name, dtype) if on_gpu else cpu_peak(this_cpu(), dtype, request.cores)
    limit, source = (None, "") if peak is None else peak
    threads = "" if on_gpu else f", {request.cores} threads"
    return Measurement(
        part="gemm",
        name=f"{dtype} on {device}",
        settings=f"{side} x {side}{threads}",
        unit="GFLOP/s",
        values=tuple(2 * side**3 / each / 1e9 for each in seconds),
        limit=limit,
        limit_source=source,
        node=request.node,
    )


def this_cpu() -> Cpu:
    """Return the processors that this process may use."""
    processors = os.sched_getaffinity(0)
    clock = Path(f"/sys/devices/system/cpu/cpu{min(processors)}/cpufreq/cpuinfo_max_freq")
    max_khz = float(clock.read_text()) if clock.exists() else None
    return cpu_of(Path("/proc/cpuinfo").read_text(), processors, max_khz)
