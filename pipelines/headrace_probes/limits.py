"""Limits of hardware: CPUs by estimate, GPUs by their vendors' data sheets; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

Peak = tuple[float, str]
"""The limit, and its source."""

_UNITS = 2
"""Units for fused multiply-add of a core; some server CPUs of the lower classes have one."""

_SIMD = (("avx512f", 512), ("avx2", 256))
_AMX_BF16 = 1024
"""Operations per cycle: a tile of 16 x 16 products of 32 pairs in 16 cycles, by Intel's
Optimization Reference Manual, chapter on AMX."""


class Cpu(NamedTuple):
    """Processors that this process may use."""

    model: str
    cores: int
    """Physical cores; processors on the same core count once."""
    hertz: float
    flags: Collection[str]


class _Gpu(NamedTuple):
    name: str
    """Part of PyTorch's name of it."""
    fp32: float
    """GFLOP/s without tensor cores."""
    bf16: float | None
    """GFLOP/s with tensor cores, dense."""
    memory: float
    """GB/s."""
    source: str


_NVIDIA = "https://resources.nvidia.com"
_GPUS = (
    _Gpu("H200", 67_000, 989_000, 4800, f"{_NVIDIA}: H200 data sheet"),
    _Gpu("H100 PCIe", 51_000, 756_000, 2000, f"{_NVIDIA}: H100 data sheet"),
    _Gpu("H100 NVL", 60_000, 835_000, 3900, f"{_NVIDIA}: H100 NVL data sheet"),
    _Gpu("H100", 67_000, 989_000, 3350, f"{_NVIDIA}: H100 data sheet, SXM"),
    _Gpu("A100-SXM4-80GB", 19_500, 312_000, 2039, f"{_NVIDIA}: A100 80GB data sheet"),
    _Gpu("A100 80GB PCIe", 19_500, 312_000, 1935, f"{_NVIDIA}: A100 80GB data sheet"),
    _Gpu("A100", 19_500, 312_000, 1555, f"{_NVIDIA}: A100 40GB data sheet"),
    _Gpu("L40S", 91_600, 362_000, 864, f"{_NVIDIA}: L40S data sheet"),
    _Gpu("V100", 15_700, None, 900, f"{_NVIDIA}: V100 data sheet, SXM2"),
    _Gpu("T4", 8_100, None, 320, f"{_NVIDIA}: T4 data sheet"),
    _Gpu("MI300X", 163_400, 1_307_400, 5300, "https://www.amd.com: Instinct MI300X data sheet"),
)
"""The first match counts."""


def cpu_of(cpuinfo: str, processors: Collection[int], max_khz: float | None = None) -> Cpu:
    """Return the CPU from the text of `/proc/cpuinfo`, for processors with these numbers.

    `max_khz`, the kernel's `cpuinfo_max_freq`, takes precedence over the current clock.
    """
    blocks = [_fields(block) for block in cpuinfo.strip().split("\n\n")]
    mine = [each for each in blocks if each.get("processor", "").isdecimal()
            and int(each["processor"]) in processors]  # fmt: skip
    cores = {
        (each.get("physical id", "0"), each.get("core id", each["processor"])) for each in mine
    }
    first: Mapping[str, str] = mine[0] if mine else {}
    clocks = [float(each["cpu MHz"]) * 1e6 for each in mine if "cpu MHz" in each]
    return Cpu(
        model=first.get("model name", first.get("cpu", "unknown")),
        cores=len(cores) or len(processors),
        hertz=max_khz * 1e3 if max_khz else max(clocks, default=0.0),
        flags=frozenset(first.get("flags", "").split()),
    )


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_peak(cpu: Cpu, dtype: str, threads: int) -> Peak | None:
    """Return the GFLOP/s of `threads` threads, for `fp32` or `bf16`; None if unknown."""
    bits = next((width for flag, width in _SIMD if flag in cpu.flags), None)
    if bits is None or not cpu.hertz:
        return None
    lanes = bits // 32
    per_cycle = lanes * 2 * _UNITS
    how = f"{lanes} lanes x 2 (multiply-add) x {_UNITS} units"
    if dtype == "bf16":
        if "amx_bf16" in cpu.flags:
            per_cycle, how = _AMX_BF16, f"AMX, {_AMX_BF16} operations a cycle"
        elif "avx512_bf16" in cpu.flags:
            per_cycle, how = 2 * per_cycle, f"{how} x 2 (bf16)"
        else:
            return None
    cores = min(cpu.cores, threads)
    source = f"estimate: {cores} cores x {cpu.hertz / 1e9:.2f} GHz x {how}"
    return cores * cpu.hertz * per_cycle / 1e9, source


def gpu_peak(name: str, what: str) -> Peak | None:
    """Return a GPU's GFLOP/s for `fp32` or `bf16`, or GB/s for `memory`; None if unknown."""
    found = next((each for each in _GPUS if each.name in name), None)
    value = None if found is None else {
        "fp32": found.fp32, "bf16": found.bf16, "memory": found.memory
    }[what]  # fmt: skip
    return None if found is None or value is None else (value, found.source)
