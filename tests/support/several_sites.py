"""Sites for one suite over several: this machine, two Slurms, and EC2's simulator.

Each has a folder and prices of its own, and says how long a step of `steady` takes there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.ec2_sim import Ec2Sim
from support.factories import write_recipe, write_site
from support.slurm_dev import DevSlurm
from support.training import CODE

SLOTS = 2
"""Trials at once on each site."""

NUM_STEPS = 5
"""Steps of a trial."""


def write_steady(home: Path, digits: Path, **changes: Any) -> None:
    """Write recipe `steady`: the digits for five steps, in a trial on a node."""
    usual: dict[str, Any] = {
        "code": [str(CODE)],
        "dataset": {"source": str(digits)},
        "data": {"global_batch_size": 256},
        "model": {"_target_": "steady_digits.SteadyDigits"},
        "trainer": {"max_epochs": 1, "checkpoint_every_steps": 2,
                    "monitor": "val/accuracy", "monitor_mode": "max"},
        "evaluate": None,
        "suite": {"trials_per_node": 1},
    }  # fmt: skip
    write_recipe(home, "steady", **{**usual, **changes})


def write_local(home: Path, name: str, step_s: float = 0.0, **changes: Any) -> None:
    """Write a site of this machine, with two nodes."""
    _write(home, name, {"backend": "local"}, step_s, folder=home / name, **changes)


def write_slurm(
    home: Path, name: str, slurm: DevSlurm, step_s: float, folder: Path, **changes: Any
) -> None:
    """Write a site of two nodes of a Slurm, where a GPU-hour has a price that no bill has."""
    batch = {"config": str(slurm.config), "interface": "lo", "poll": 0.5}
    role = {"backend": "slurm", "lifetime": 900, "batch": batch, **changes}
    _write(home, name, role, step_s, folder=folder)


def write_ec2(home: Path, name: str, sim: Ec2Sim, step_s: float, **changes: Any) -> None:
    """Write a site of two spot instances."""
    ec2 = {**sim.values(), "markets": ["spot"], "prices": {"m5.large": {"spot": 0.6}}}
    role = {
        "backend": "ec2", "lifetime": 900, "batch": {"interface": "lo", "poll": 0.5},
        "ec2": ec2, **changes,
    }  # fmt: skip
    _write(home, name, role, step_s, folder=home / name)


def _write(
    home: Path, name: str, role: dict[str, Any], step_s: float, *, folder: Path, **changes: Any
) -> None:
    gpu = {"kind": "pool", "nodes": SLOTS, "threads_per_rank": 1, **role}
    roles = {
        "cpu": {"backend": "local", "kind": "pool", "nodes": 1},
        "gpu": gpu | {"env": {"STEP_S": str(step_s)}},
    }
    write_site(
        home, name, folder=str(folder), roles=roles,
        tiers=[{"name": "disk", "folder": str(folder / "tier"), "reserve": 0}],
        limits={"max_leases": 4, "heartbeat": 1, "lost_after": 12},
        allowed_code=[str(CODE)], allowed_sources=["/"], **changes,
    )  # fmt: skip
