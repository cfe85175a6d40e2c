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
from headrace.record import Record
from headrace.steps.context import StepContext

_PACKAGES = ("headrace", "dask", "distributed", "torch", "lightning", "h5py", "numpy")
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


class TierSpace(Record):
    """Room for staged shards on one node."""

    folder: str
    """Folder of the tier on this node."""
    free_bytes: int
    """Free space of the file system that holds it (or its nearest parent that exists)."""
    total_bytes: int
    """Size of that file system."""


class NodeFacts(Record):
    """What one node is and has."""

    hostname: str
    """Name of the machine."""
    platform: str
    """Operating system and processor."""
    python: str
    """Version of Python."""
    executable: str
    """The Python that workers run."""
    num_cpus: int
    """Processors that this process may use."""
    memory_bytes: int
    """Memory of the machine."""
    available_bytes: int
    """Memory that is free to use."""
    packages: dict[str, str]
    """Versions of the packages that matter; those that are missing are left out."""
    variables: dict[str, str]
    """Environment variables that matter; those that are not set are left out."""
    tiers: dict[str, TierSpace]
    """Staging tiers by name."""


def run(context: StepContext) -> dict[str, Any]:
    """Look at nodes of the lease.

    Args:
        context: Input `nodes`: how many to look at; 1 when left out.

    Returns:
        `nodes`: for each node its `name`, `address` and `NodeFacts`.

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
            found.append({"name": node.name, "address": node.address, **facts.model_dump()})
            context.progress(len(found), count, "nodes", "looking at nodes")
    return {"nodes": found}


def _node_facts(tiers: Mapping[str, str]) -> NodeFacts:
    """This node, with the folders of the staging tiers by name, which need not exist."""
    memory = psutil.virtual_memory()
    return NodeFacts(
        hostname=socket.gethostname(),
        platform=platform.platform(),
        python=platform.python_version(),
        executable=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        packages=_versions(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        tiers={name: _space(Path(folder)) for name, folder in tiers.items()},
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _space(folder: Path) -> TierSpace:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return TierSpace(folder=str(folder), free_bytes=usage.free, total_bytes=usage.total)
