"""The nodes of a lease: in the order of their names, and waited for as long as was said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clusters import fleet as fleet_module
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.scheduler import SLOT, WAITS, worker_options
from headrace.errors import LeaseError
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from support.leases import lease_spec

SPEC = LeaseSpec(lease_id="demo-1", key="", run_id="", role_name="cpu", role=Role())


class Connected:
    """A Dask client whose scheduler has the given workers."""

    def __init__(self, *workers: tuple[str, str, str], waits_for: str = "") -> None:
        states = [
            SimpleNamespace(name=name, address=address, status=SimpleNamespace(name=status))
            for name, address, status in workers
        ]
        waits = {WAITS: waits_for} if waits_for else {}
        self.scheduler = SimpleNamespace(workers=dict(enumerate(states)), task_metadata=waits)

    def get_metadata(self, keys: list[str], default: str) -> str:
        return self.scheduler.task_metadata.get(keys[0], default)

    def run_on_scheduler(self, function: Callable[..., Any]) -> Any:
        return function(dask_scheduler=self.scheduler)


def worker(name: str, number: int, status: str = "running") -> tuple[str, str, str]:
    return name, f"tls://10.0.0.{number}:5000", status


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that goes on only while somebody waits; its last entry is the time."""
    passed = [0.0]
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: passed[-1])
    monkeypatch.setattr(
        fleet_module.time, "sleep", lambda seconds: passed.append(passed[-1] + seconds)
    )
    return passed


def test_nodes_come_in_the_order_of_their_numbers():
    client = Connected(worker("node-10", 1), worker("node-9", 2), worker("node-1", 3, "closing"))
    found = fleet_module.present(client)
    assert [(each.name, each.host, each.index) for each in found] == [
        ("node-9", "10.0.0.2", 0),
        ("node-10", "10.0.0.1", 1),
    ]
    fleet = Fleet(Connected(worker("node-9", 4)), SPEC)
    assert fleet._gone(found) == list(found)  # one was replaced, one has gone


def test_nodes_that_do_not_come_in_time(clock: list[float]):
    checks: list[float] = []
    with pytest.raises(LeaseError, match="1 of 2 nodes of lease demo-1 joined within 7 s"):
        fleet_module.arrived(
            Connected(worker("a", 1)), SPEC, 2, 7.0, lambda: checks.append(clock[-1])
        )
    assert 7.0 < clock[-1] < 8.0
    assert len(checks) == len(clock)
    assert len(fleet_module.arrived(Connected(worker("a", 1)), SPEC, 1, 7.0, lambda: None)) == 1


@pytest.mark.parametrize("queue_counts", [False, True])
def test_time_in_a_queue_does_not_count_unless_it_is_said(clock: list[float], queue_counts: bool):
    client = Connected(waits_for="Slurm job 7 is pending: Resources")
    assert fleet_module.waits_for(client) == "Slurm job 7 is pending: Resources"

    def check() -> None:
        if clock[-1] > 100.0:
            client.scheduler.task_metadata.clear()

    with pytest.raises(LeaseError, match="0 of 1"):
        fleet_module.arrived(client, SPEC, 1, 7.0, check, queue_counts)
    assert (clock[-1] > 105.0) != queue_counts
    assert fleet_module.waits_for(Connected()) == ""


@pytest.mark.parametrize("threads", [1, 3])
def test_a_node_has_a_thread_for_short_calls_beside_its_work(threads: int, tmp_path: Path):
    folder = LeaseFolder(tmp_path / "demo-1")
    options = worker_options(folder, lease_spec(folder, Role(threads_per_node=threads)))
    assert options["nthreads"] == threads + 1 == options["resources"][SLOT] + 1
