"""What Airflow parses, and what answers a command, imports nothing heavy (pains 4)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIGHT = (
    "headrace.recipe.load",
    "headrace.recipe.schema",
    "headrace.steps.mailbox",
    "headrace.clusters.lease_client",
    "headrace.clusters.lease_records",
    "headrace.ledger.ledger",
    "headrace.execution.execute",
    "headrace.execution.reap",
    "headrace.cli.commands",
    "headrace.packing.recipe_check",
    "headrace_probes.command",
    "headrace_probes.probe_kind",
)

SENT = (
    "headrace.steps.node_facts",
    "headrace_probes.on_node",
    "headrace_probes.probe_step",
    "headrace.packing.pack_shard",
    "headrace.staging.staged",
    "headrace.staging.stage_step",
    "headrace.training.gang",
    "headrace.script",
    "headrace.evaluation.evaluate_step",
)
"""Modules of the functions that go to workers. Dask's scheduler, which lives in the lease's host,
imports them too, in its event loop: while that takes long, the lease gives no heartbeat. And what
a training script imports, which may do without PyTorch."""

SLOW = ("lightning", "matplotlib", "pandas", "sklearn", "torch", "torchmetrics")

HEAVY = (
    "alembic",
    "bokeh",
    "dask",
    "distributed",
    "h5py",
    "lightning",
    "matplotlib",
    "pandas",
    "sklearn",
    "torch",
    "torchmetrics",
)


def heavy_after(modules: tuple[str, ...]) -> dict[str, list[str]]:
    """Heavy packages that are there after importing each module, one after the other."""
    code = (
        "import importlib, json, sys\n"
        "light, heavy = json.loads(sys.argv[1])\n"
        "found = {}\n"
        "for name in light:\n"
        "    importlib.import_module(name)\n"
        "    found[name] = [package for package in heavy if package in sys.modules]\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([modules, HEAVY])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """What the light modules have loaded."""
    return heavy_after(LIGHT)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy(imported: dict[str, list[str]], module: str):
    assert imported[module] == []


def test_what_is_sent_to_workers_is_quick_to_import():
    slow = {name: set(found) & set(SLOW) for name, found in heavy_after(SENT).items()}
    assert slow == {name: set() for name in SENT}


def test_what_every_lease_starts_makes_no_classes_of_recipes():
    """Hosts and workers of leases read none, and each class of a record takes time to make."""
    code = (
        "import sys, headrace.clusters.host, headrace.clusters.worker\n"
        "print([name for name in sys.modules if name == 'headrace.recipe.recipe'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
