"""`headrace lease` on real leases of the built-in site laptop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.clusters import client
from headrace.clusters.local import marked
from headrace.clusters.records import HostRecord
from headrace.errors import SiteError, UnknownNameError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from support import command_line
from support.leases import opened, submit_probe
from support.waiting import wait_until

Headrace = Callable[..., str]


@pytest.fixture
def headrace(headrace_home: Path) -> Headrace:
    """Runs a command and gives its output; errors come as they are raised."""

    def run(*arguments: str) -> str:
        result = command_line.headrace("lease", *arguments, columns=250)
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def lease(headrace_home: Path) -> Iterator[LeaseFolder]:
    folder = opened(headrace_home, Role(kind="gang", nodes=1), lease_id="demo-gpu-1")
    yield folder
    client.end(folder)


def test_seen_entered_and_closed(headrace: Headrace, lease: LeaseFolder) -> None:
    info = client.info(lease)
    assert info is not None
    step = submit_probe(lease)
    wait_until(lambda: mailbox.outcome(step), 120, "the step to end")

    table = headrace("list")
    for word in ("demo-gpu-1", "ready", "1 (gang)", info.dashboard_url):
        assert word in table
    (view,) = json.loads(headrace("list", "--json"))
    assert (view["state"], view["num_steps"], view["num_running"]) == ("ready", 1, 0)
    assert 0 <= view["idle_s"] < 60

    shown = headrace("show", "demo-gpu-1")
    for word in ("host.log", "idle stop", "demo/look/1", StepState.SUCCEEDED.value):
        assert word in shown
    assert json.loads(headrace("show", "demo-gpu-1", "--json"))["info"]["nodes"] == 1

    code = "print('sum', client.submit(sum, [1, 2]).result(), len(fleet.nodes(1, 30)))"
    assert "sum 3 1" in headrace("shell", "demo-gpu-1", "-c", code)

    assert "is closed: wrong data" in headrace("close", "demo-gpu-1", "--reason", "wrong data")
    assert not marked([lease])[str(lease.path.resolve())]
    assert "--all" in headrace("list")
    assert "wrong data" in headrace("list", "--all")


def test_reap_ends_what_a_killed_host_left(headrace: Headrace, lease: LeaseFolder) -> None:
    """pains 22."""
    assert headrace("reap") == "Nothing to reap.\n"
    host = read_record(lease.host, HostRecord)
    assert host is not None
    psutil.Process(host.process.pid).kill()
    wait_until(lambda: client.state(lease, 20) is LeaseState.LOST, 90, "the loss to be seen")
    assert "demo-gpu-1: The lease's host" in headrace("reap")
    assert headrace("reap") == "Nothing to reap.\n"


def test_an_unknown_lease_names_the_nearest(headrace: Headrace, lease: LeaseFolder) -> None:
    with pytest.raises(UnknownNameError, match=r"(?s)'demo-gpu-2'.*Did you mean 'demo-gpu-1'"):
        headrace("show", "demo-gpu-2")
    with pytest.raises(SiteError, match=r"(?s)no site 'labtop'.*Did you mean 'laptop'"):
        headrace("list", "--site", "labtop")


def test_without_leases(headrace: Headrace) -> None:
    assert headrace("list", "--all") == "No leases.\n"
    assert json.loads(headrace("list", "--json")) == []
    assert headrace("reap") == "Nothing to reap.\n"
