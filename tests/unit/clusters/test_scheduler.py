"""By which address a node is reached, and when nodes were there."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.clusters import scheduler
from headrace.clusters.node_marks import NodeLine, NodeSpan, spans, spans_of
from headrace.clusters.scheduler import NodeTimes
from headrace.errors import LeaseError
from headrace.files.layout import LeaseFolder


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


def test_the_default_route_says_it(network):
    network("10.0.0.7", eth0="10.0.0.7", ib0="10.1.0.7")
    assert scheduler.address(None) == "10.0.0.7"


def test_without_a_route_a_name_that_means_loopback_is_not_taken(network):
    """Pains 33: a host name resolves to localhost."""
    network("127.0.1.1", ib0="10.1.0.7")
    assert scheduler.address(None) == "10.1.0.7"


def test_without_a_route_several_interfaces_are_the_users_choice(network):
    """Pains 33."""
    network("127.0.1.1", eth0="10.0.0.7", ib0="10.1.0.7")
    with pytest.raises(LeaseError, match=r"eth0 \(10\.0\.0\.7\), ib0 .*\n.*batch\.interface"):
        scheduler.address(None)


def test_a_machine_alone_has_loopback_only(network):
    network("127.0.1.1")
    assert scheduler.address(None) == "127.0.1.1"


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
    for worker in ("a", "b"):
        times.add_worker(scheduler, worker)
        times.remove_worker(scheduler, worker, stimulus_id="x")
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
