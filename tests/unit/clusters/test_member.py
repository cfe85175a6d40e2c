"""The processes of nodes: they end in order when asked to, and record what else ended them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clusters import member, worker
from headrace.clusters.gang import GangCluster
from headrace.clusters.lease_records import BadNodes
from headrace.errors import LeaseError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from support.leases import lease_spec


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
    scheduler = SimpleNamespace(workers=workers, address="", dashboard_url="")
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
    scheduler = SimpleNamespace(workers=workers, address="", dashboard_url="")
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
