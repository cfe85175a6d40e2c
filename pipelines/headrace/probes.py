"""The probe step: tells what the nodes of a lease are, and that it works from end to end."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from headrace.clusters.fleet import Fleet
from headrace.files.tiers import folder_of
from headrace.steps.context import StepContext

_PACKAGES = ("headrace", "dask", "distributed", "torch", "lightning", "h5py", "numpy")
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


def run(context: StepContext) -> dict[str, Any]:
    """Look at nodes of the lease.

    Args:
        context: Input `nodes`: how many to look at; 1 when left out.

    Returns:
        `nodes`: for each node its `name`, `address`, and what `_node_facts` gives.

    Raises:
        LeaseError: The nodes are not there in time.
    """
    count = int(str(context.spec.inputs.get("nodes") or 1))
    tiers = {tier.name: str(folder_of(tier)) for tier in context.site.tiers}
    context.progress(0, count, "nodes", "waiting for nodes")
    found: list[dict[str, Any]] = []
    with Fleet.open(context.lease_folder) as fleet:
        timeout_s = fleet.role.start_timeout
        for node in fleet.nodes(count, timeout_s, check=context.check):
            facts = fleet.call(node, _node_facts, tiers)
            found.append({"name": node.name, "address": node.address, **facts})
            context.progress(len(found), count, "nodes", "looking at nodes")
    return {"nodes": found}


def _node_facts(tiers: Mapping[str, str]) -> dict[str, Any]:
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
        "packages": _versions(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "tiers": {name: _space(Path(folder)) for name, folder in tiers.items()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _space(folder: Path) -> dict[str, Any]:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return {"folder": str(folder), "free_bytes": usage.free, "total_bytes": usage.total}
