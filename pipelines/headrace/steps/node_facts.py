"""The step `nodes`: what the nodes of a lease are and have."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headrace.files.tiers import folder_of
from headrace.steps.context import StepContext

if TYPE_CHECKING:
    from headrace.clusters.node_calls import Node, NodeCalls

_PACKAGES = ("headrace", "dask", "distributed", "torch", "lightning", "h5py", "numpy")
_MODELS = ("model name", "cpu\t")
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


def run(context: StepContext) -> dict[str, Any]:
    """Look at nodes of the lease.

    Args:
        context: Input `nodes`: how many; 1 when left out.

    Returns:
        The `nodes`, each with its `name`, `address`, and what `node_facts` gives.

    Raises:
        LeaseError: The nodes are not there in time.
    """
    from headrace.clusters.fleet import Fleet  # Dask; benchmarks and their command need it not

    count = int(str(context.spec.inputs.get("nodes") or 1))
    with Fleet.open(context.lease_folder) as fleet:
        nodes = fleet.nodes(count, fleet.role.start_timeout, check=context.check)
        return {"nodes": facts_of(context, fleet, nodes)}


def facts_of(context: StepContext, fleet: NodeCalls, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """What these nodes are; see `run`."""
    tiers = {tier.name: str(folder_of(tier)) for tier in context.site.tiers}
    found = []
    for node in nodes:
        facts = fleet.call(node, node_facts, tiers)
        found.append({"name": node.name, "address": node.address, **facts})
        context.progress(len(found), len(nodes), "nodes", "looking at nodes")
    return found


def node_facts(tiers: Mapping[str, str]) -> dict[str, Any]:
    """What this node is and has; the folders of the staging tiers need not exist."""
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


def cpu_model() -> str:
    """Model of the processor; empty where the kernel does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(_MODELS)), "")


def gpu_names() -> list[str]:
    """Names and driver of the GPUs of the node, as `nvidia-smi` tells; none without it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return told.stdout.splitlines()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that are installed, of those that are named."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _space(folder: Path) -> dict[str, Any]:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return {"folder": str(folder), "free_bytes": usage.free, "total_bytes": usage.total}
