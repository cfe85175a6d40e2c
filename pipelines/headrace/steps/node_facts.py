"""The step `nodes`: hardware and software of a lease's nodes."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from headrace import __version__
from headrace.batch.commands import answer_of
from headrace.files.tiers import folder_of
from headrace.steps.context import StepContext

if TYPE_CHECKING:
    from headrace.clusters.node_calls import Node, NodeCalls

_PACKAGES = ("headrace", "dask", "distributed", "torch", "lightning", "h5py", "numpy")
_FOR_NUMBERS = ("headrace", "torch", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
_MODELS = ("model name", "cpu\t", "CPU part")
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


def run(context: StepContext) -> dict[str, Any]:
    """Return `nodes`: of as many as the input `nodes` names, by default 1, the `node_facts`.

    Each also has its `name` and `address`. Raises LeaseError if they do not arrive in time.
    """
    from headrace.clusters.fleet import Fleet  # Dask, which benchmarks do not need

    count = int(str(context.spec.inputs.get("nodes") or 1))
    with Fleet.open(context.lease_folder) as fleet:
        nodes = fleet.nodes(count, fleet.role.start_timeout, check=context.check)
        return {"nodes": facts_of(context, fleet, nodes)}


def facts_of(context: StepContext, fleet: NodeCalls, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Return facts of these nodes; see `run`."""
    tiers = {tier.name: str(folder_of(tier)) for tier in context.site.tiers}
    found = []
    for node in nodes:
        facts = fleet.call(node, node_facts, tiers)
        found.append({"name": node.name, "address": node.address, **facts})
        context.progress(len(found), len(nodes), "nodes", "looking at nodes")
    return found


def node_facts(tiers: Mapping[str, str]) -> dict[str, Any]:
    """Return hardware and software of this node; folders of staging tiers need not exist."""
    memory = psutil.virtual_memory()
    return {
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "num_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.total,
        "available_bytes": memory.available,
        "packages": versions(_PACKAGES),
        "cpu": cpu_model(),
        "gpus": gpu_names(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "tiers": {name: _space(Path(folder)) for name, folder in tiers.items()},
    }


def software() -> str:
    """Return the versions that all sites of a suite must share: of headrace and of Python."""
    return f"headrace {__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"


@cache
def environment(hardware: Literal["gpu", "cpu"]) -> str:
    """Return what numbers of a training on this node may depend on, separated by `; `."""
    gpus = [each.partition(",")[0] for each in gpu_names()] if hardware == "gpu" else []
    found = {"python": platform.python_version(), **versions(_FOR_NUMBERS)}
    models = " + ".join(dict.fromkeys(gpus)) or cpu_model() or platform.machine()
    return "; ".join((models, *(f"{name} {version}" for name, version in found.items())))


def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor; empty if the kernel does not report it."""
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(_MODELS)), "")


def gpu_names() -> list[str]:
    """Return names and driver of the node's GPUs from `nvidia-smi`; empty without it."""
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    answer = answer_of(("nvidia-smi", *query), 20.0)
    return answer.output.splitlines() if answer.code == 0 else []


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed distributions, among those named."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _space(folder: Path) -> dict[str, Any]:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return {"folder": str(folder), "free_bytes": usage.free, "total_bytes": usage.total}
