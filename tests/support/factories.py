"""Recipes, sites, leases, steps and jobs with defaults: a test states only what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.batch.job_records import JobSpec
from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import HostRecord, LeaseInfo, LeaseSpec
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import BUILT_IN
from headrace.recipe.site import Role
from headrace.runs.prediction import PredictedPart, Prediction
from headrace.steps.mailbox import StepSpec


def built_in(kind: str, name: str) -> dict[str, Any]:
    """Return the content of a built-in recipe or site.

    Args:
        kind: `recipes` or `sites`.
        name: Such as `digits` or `laptop`.
    """
    return dict(yaml.safe_load((BUILT_IN / kind / f"{name}.yaml").read_text()))


def write_yaml(file: Path, content: dict[str, Any]) -> Path:
    """Write a file of YAML, keys in their order, and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def write_site(home: Path, name: str, *, like: str = "laptop", **changes: Any) -> Path:
    """Write site `name` of a home: a built-in one with changed keys."""
    content = built_in("sites", like) | {"name": name, **changes}
    return write_yaml(home / "sites" / f"{name}.yaml", content)


def write_recipe(home: Path, name: str, *, like: str = "digits", **changes: Any) -> Path:
    """Write recipe `name` of a home: a built-in one with changed keys.

    A mapping changes the keys that it names, but a target replaces one.
    """
    content = built_in("recipes", like) | {"name": name}
    for key, value in changes.items():
        is_part = isinstance(value, dict) and "_target_" not in value
        content[key] = {**content[key], **value} if is_part and content.get(key) else value
    return write_yaml(home / "recipes" / f"{name}.yaml", content)


def step_spec(run: RunFolder, name: str, **changes: Any) -> StepSpec:
    """The first attempt at a step of a run, of the kind that has the step's name."""
    values: dict[str, Any] = {
        "key": f"{run.run_id}/{name}/1",
        "kind": name,
        "run_id": run.run_id,
        "name": name,
        "attempt": 1,
        "run_folder": str(run.path),
    }
    return StepSpec(**{**values, **changes})


def demo_lease(lease_id: str = "demo-gpu-1", **changes: Any) -> LeaseSpec:
    """A lease of run `demo` on this machine."""
    role_name = changes.get("role_name", "gpu")
    values = {"key": f"demo/{role_name}", "run_id": "demo", "role_name": role_name, "role": Role()}
    return LeaseSpec(**{"lease_id": lease_id, **values, **changes})


def demo_info(lease_id: str = "demo-gpu-1", **changes: Any) -> LeaseInfo:
    """What the host of a lease with one node publishes; this process is the host."""
    values: dict[str, Any] = {
        "lease_id": lease_id,
        "backend": "local",
        "host": ProcessIdentity.of(),
        "scheduler_address": "tls://127.0.0.1:1",
        "dashboard_url": "http://127.0.0.1:2/status",
        "nodes": 1,
        "ready_at": 1.0,
    }
    return LeaseInfo(**{**values, **changes})


def write_lease(
    folder: LeaseFolder, host: ProcessIdentity | None = None, **changes: Any
) -> LeaseFolder:
    """Write the spec of a lease; with a host also the host's record and a heartbeat."""
    write_record(folder.spec, demo_lease(folder.lease_id, **changes))
    if host is not None:
        write_record(folder.host, HostRecord(process=host))
        write_heartbeat(folder)
    return folder


def prediction(seconds: Mapping[str, float], spread: float = 0.1, **changes: Any) -> Prediction:
    """The forecast of a run from the expected seconds of its parts; 0 is a run on CPUs."""
    parts = tuple(
        PredictedPart(name=name, seconds=each, spread=spread, shared=0.0, num_known=3)
        for name, each in seconds.items()
    )
    values = {"seconds": sum(seconds.values()), "unknown": (), "gpu_hours": 0.0, "made_at": 1.0}
    return Prediction(**{"parts": parts, **values, **changes})


def job_spec(**changes: Any) -> JobSpec:
    """A job of one node that does nothing, for a minute at most."""
    values: dict[str, Any] = {
        "name": "headrace-x",
        "command": ("true",),
        "nodes": 1,
        "cpus_per_node": 1,
        "time_limit_s": 60.0,
        "folder": "/",
        "log": "/dev/null",
    }
    return JobSpec(**{**values, **changes})
