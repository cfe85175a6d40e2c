"""The nodes of a lease: their order, addresses and processes, and how long they are waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.clusters import fleet as fleet_module
from headrace.clusters import member, scheduler, worker
from headrace.clusters.fleet import Fleet
from headrace.clusters.gang import GangCluster
from headrace.clusters.lease_records import BadNodes
from headrace.clusters.node_marks import NodeLine, NodeSpan, spans, spans_of
from headrace.clusters.scheduler import SLOT, WAITS, NodeTimes, worker_options
from headrace.errors import LeaseError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from support.factories import demo_lease
from support.leases import lease_spec

SPEC = demo_lease("demo-1", role_name="cpu")


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


def known_worker(name: str, number: int, status: str = "running") -> tuple[str, str, str]:
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
    client = Connected(
        known_worker("node-10", 1), known_worker("node-9", 2), known_worker("node-1", 3, "closing")
    )
    found = fleet_module.present(client)
    assert [(each.name, each.host, each.index) for each in found] == [
        ("node-9", "10.0.0.2", 0),
        ("node-10", "10.0.0.1", 1),
    ]
    fleet = Fleet(Connected(known_worker("node-9", 4)), SPEC)
    assert fleet._gone(found) == list(found)  # one was replaced, one has gone


def test_nodes_that_do_not_come_in_time(clock: list[float]):
    checks: list[float] = []
    with pytest.raises(LeaseError, match="1 of 2 nodes of lease demo-1 joined within 7 s"):
        fleet_module.arrived(
            Connected(known_worker("a", 1)), SPEC, 2, 7.0, lambda: checks.append(clock[-1])
        )
    assert 7.0 < clock[-1] < 8.0
    assert len(checks) == len(clock)
    assert (
        len(fleet_module.arrived(Connected(known_worker("a", 1)), SPEC, 1, 7.0, lambda: None)) == 1
    )


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


@pytest.fixture
def network(monkeypatch):
    """What the machine's default route and interfaces are said to be."""

    def say(routed: str, **interfaces: str) -> None:
        found = {
            name: [
                SimpleNamespace(family=family, address=each)
                for family, each in (
                    (psutil.AF_LINK, "02:42:ac:11:00:02"),
                    (socket.AF_INET, address),
                    (socket.AF_INET6, f"fe80::1%{name}"),
                )
            ]
            for name, address in {"lo": "127.0.0.1", **interfaces}.items()
        }
        monkeypatch.setattr(scheduler, "get_ip", lambda: routed)
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)

    return say


@pytest.mark.parametrize(
    ("routed", "interfaces", "address"),
    [
        ("10.0.0.7", {"eth0": "10.0.0.7", "ib0": "10.1.0.7"}, "10.0.0.7"),
        ("127.0.1.1", {"ib0": "10.1.0.7"}, "10.1.0.7"),  # pains 33: the host's name is localhost
        ("127.0.1.1", {}, "127.0.1.1"),  # a machine alone
    ],
)
def test_the_address_is_that_of_the_default_route_or_the_only_one(
    network, routed, interfaces, address
):
    network(routed, **interfaces)
    assert scheduler.address(None) == address


def test_without_a_route_several_interfaces_are_the_users_choice(network):
    """Pains 33."""
    network("127.0.1.1", eth0="10.0.0.7", ib0="10.1.0.7")
    with pytest.raises(LeaseError, match=r"eth0 \(10\.0\.0\.7\), ib0 .*\n.*batch\.interface"):
        scheduler.address(None)


def test_an_interface_by_name():
    """Pains 33."""
    assert scheduler.address("lo") == "127.0.0.1"
    with pytest.raises(LeaseError, match="no network interface 'nosuch0'"):
        scheduler.address("nosuch0")


def _scheduler(**workers: str) -> Any:
    states = {
        address: SimpleNamespace(name=name, host="10.0.0.1") for address, name in workers.items()
    }
    return SimpleNamespace(workers=states)


def test_a_gang_holds_its_nodes_whatever_becomes_of_their_workers(tmp_path: Path):
    times, scheduler = NodeTimes(LeaseFolder(tmp_path), ["node-0", "node-1"], 5.0), _scheduler()
    scheduler = _scheduler(a="node-0", b="node-0")
    times.add_worker(scheduler, "a")
    times.remove_worker(scheduler, "a", stimulus_id="x")
    times.add_worker(scheduler, "b")
    first, second = spans_of(LeaseFolder(tmp_path))
    assert (first.machine_id, first.host, first.started_at) == ("node-0", "10.0.0.1", 5.0)
    assert first.joined_at is not None
    assert second == NodeSpan(machine_id="node-1", started_at=5.0)


def test_a_node_of_this_machine_ends_with_its_worker_and_one_with_a_job_does_not(tmp_path: Path):
    asked = {"node-1": 3.0}
    times = NodeTimes(LeaseFolder(tmp_path), asked=asked.get)
    scheduler = _scheduler(a="node-0", b="node-1")
    times.begin("node-1", 7.0)
    times.begin("node-1", 9.0)  # the next look at the queue
    for each in ("a", "b"):
        times.add_worker(scheduler, each)
        times.remove_worker(scheduler, each, stimulus_id="x")
    times.end("node-2")  # its job never ran
    of_job, own = spans_of(LeaseFolder(tmp_path))
    assert (of_job.asked_at, of_job.started_at, of_job.ended_at) == (3.0, 7.0, None)
    assert (own.asked_at, own.ended_at is None) == (None, False)
    times.end("node-1")
    times.begin("node-1", 20.0)
    assert [each.machine_id for each in spans_of(LeaseFolder(tmp_path))][2] == "node-1#2"


def test_a_full_disk_ends_no_host(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    NodeTimes(LeaseFolder(tmp_path / "gone"), ["node-0"], 5.0)
    assert "Event 'began' of node-0 is not recorded" in caplog.text


def test_lines_without_their_first_tell_nothing():
    lines = [NodeLine(event="joined", name="node-0"), NodeLine(event="ended", name="node-1")]
    assert spans(lines) == ()


class Node:
    """A node that ends itself as a batch system would, or fails."""

    def __init__(self, sent: signal.Signals | None) -> None:
        self.sent = sent
        self.closed = 0

    async def keep(self) -> None:
        if self.sent is None:
            raise ConnectionError("the scheduler has gone")
        os.kill(os.getpid(), self.sent)
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_asked_to_end_is_no_failure(sent: signal.Signals):
    node = Node(sent)
    asyncio.run(worker.serve_until_signal(node, node.keep()))
    assert node.closed == 1


def test_what_ends_a_node_otherwise_is_raised():
    node = Node(None)
    with pytest.raises(ConnectionError, match="has gone"):
        asyncio.run(worker.serve_until_signal(node, node.keep()))
    assert node.closed == 1


@pytest.mark.parametrize(("there", "joins"), [("", True), ("closed", False), ("close", True)])
def test_a_node_joins_a_lease_that_is_not_over_and_leaves_with_it(
    tmp_path: Path, there: str, joins: bool
):
    folder = LeaseFolder(tmp_path)
    folder.scheduler_file.write_text('{"address": "tls://127.0.0.1:7"}')
    if there:
        (tmp_path / there).touch()
        asyncio.run(asyncio.wait_for(member._closing(folder), 30))
    address = asyncio.run(worker.scheduler_of(folder))
    assert address == ("tls://127.0.0.1:7" if joins else None)


@pytest.mark.parametrize(
    ("here", "missing"),
    [(("node-1",), ("n1", "n3")), (("node-0", "node-1", "node-2"), None)],
)
def test_nodes_that_do_not_come_are_named_for_the_next_lease(
    tmp_path: Path,
    here: tuple[str, ...],
    missing: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
):
    """pains 31: and nobody waits longer than `start_timeout`."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setattr(GangCluster, "_join", lambda *_: asyncio.Event().wait())
    folder = LeaseFolder(tmp_path)
    role = Role(backend="slurm", kind="gang", nodes=3, start_timeout=0.01)
    workers = {name: SimpleNamespace(name=name) for name in here}
    scheduler = SimpleNamespace(workers=workers)
    gang = GangCluster(folder, lease_spec(folder, role), scheduler)
    with pytest.raises(LeaseError, match=f"{len(here)} of 3 nodes joined within 0.01 s"):
        asyncio.run(gang.wait_for_nodes())
    bad = read_record(folder.bad_nodes, BadNodes)
    assert (bad and bad.nodes) == missing


def test_a_gang_without_one_of_its_nodes_ends_when_that_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 34: where no queue ends the whole job."""
    now_s = 0.0
    monkeypatch.setattr("headrace.clusters.gang.time.monotonic", lambda: now_s)
    folder, workers = LeaseFolder(tmp_path), {"a": None, "b": None}
    scheduler = SimpleNamespace(workers=workers)
    spec = lease_spec(folder, Role(backend="slurm", kind="gang", nodes=2))
    gang = GangCluster(folder, spec, scheduler)
    now_s = 100.0
    gang.check()
    del workers["b"]
    now_s += 1000.0  # the host was halted for so long, and has lost sight of a worker
    gang.check()
    now_s += 2 * spec.lost_after_s
    gang.check()  # a worker that died is started again
    now_s += 1.0
    with pytest.raises(LeaseError, match="1 of 2 nodes of the gang have been left for 31 s"):
        gang.check()


CONTAINER = {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}}


@pytest.mark.parametrize(
    ("batch", "arguments", "is_closed", "is_fit", "code", "done"),
    [
        ({}, (), False, True, 0, ["looked at", "served"]),
        ({}, (), False, False, 1, ["looked at"]),
        ({}, (), True, True, 0, []),
        (CONTAINER, (), False, True, 0, ["looked at", "apptainer"]),
        (CONTAINER, ("--inside",), False, False, 0, ["served"]),
    ],
)
def test_a_node_of_a_pool(
    batch: dict[str, Any],
    arguments: tuple[str, ...],
    is_closed: bool,
    is_fit: bool,
    code: int,
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container it is looked at outside, and serves inside."""
    seen: list[str] = []
    folder = SiteFolder(tmp_path).lease("a-1")
    role = Role.model_validate({"backend": "slurm", "batch": batch})
    write_record(folder.spec, lease_spec(folder, role))
    if is_closed:
        write_text(folder.close, "enough")

    def looked_at(*_: object) -> bool:
        seen.append("looked at")
        return is_fit

    def executed(program: str, command: list[str], _: object) -> None:
        assert list(command[-3:]) == [str(folder.path), "3", "--inside"]
        seen.append(program)
        raise SystemExit(0)  # nothing of this process is left

    async def served(lease: LeaseFolder, _: object, number: int) -> None:
        assert (lease.path, number) == (folder.path, 3)
        seen.append("served")

    monkeypatch.setattr(worker, "_is_fit", looked_at)
    monkeypatch.setattr(worker, "_serve", served)
    monkeypatch.setattr(worker.os, "execvpe", executed)
    try:
        ended = worker.main([str(folder.path), "3", *arguments])
    except SystemExit as left:
        ended = left.code
    assert (ended, seen) == (code, done)
