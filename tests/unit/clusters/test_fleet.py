"""The fleet on a real lease of two nodes, opened once for all tests here."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Future

from headrace.clusters import cancellable_call, lease_client
from headrace.clusters import fleet as fleet_module
from headrace.clusters.cancellable_call import wanted
from headrace.clusters.fleet import Fleet, now_done
from headrace.clusters.node_calls import Node, NodeCalls, OneNode
from headrace.errors import (
    LeaseEndsError,
    LeaseError,
    LeaseLostError,
    StepCancelledError,
    WorkerLostError,
)
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from support import fleet_functions
from support.leases import lease_spec, opened
from support.waiting import wait_until


@pytest.fixture(scope="module")
def lease(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaseFolder]:
    """A gang of two nodes with two threads each; Dask's own limit for busy workers is lowered."""
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "1s")
        folder = opened(site, Role(kind="gang", nodes=2, threads_per_node=2, idle_stop=3600))
    yield folder
    lease_client.end(folder)


@pytest.fixture
def fleet(lease: LeaseFolder) -> Iterator[Fleet]:
    with Fleet.open(lease) as opened_fleet:
        _answering(opened_fleet)
        yield opened_fleet


@pytest.fixture
def nodes(fleet: Fleet) -> tuple[Node, ...]:
    return fleet.nodes(2, 60)


def _answering(fleet: Fleet) -> tuple[Node, ...]:
    """Both nodes; a worker that was killed just now counts as there until its scheduler sees it."""

    def answering() -> tuple[Node, ...]:
        found = fleet.nodes(2, 60)
        try:
            for node in found:
                fleet.call(node, os.getpid)
        except WorkerLostError:
            return ()
        return found

    return wait_until(answering, 60, "both nodes to answer")


def test_a_result_that_goes_with_its_worker_is_not_waited_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask would wait for the node to compute it again, which has gone."""
    node = _answering(fleet)[0]
    pid, original = fleet.call(node, os.getpid), fleet_module.results_of

    def results_of(client: Client, futures: list[Future]) -> dict[Future, Any]:
        psutil.Process(pid).kill()
        wait_until(lambda: futures[0].status != "finished", 60, "Dask to miss the result")
        return original(client, futures)

    monkeypatch.setattr(fleet_module, "results_of", results_of)
    with pytest.raises(WorkerLostError, match="died"):
        fleet.call(node, os.getpid)


def test_a_timeout_of_the_function_is_an_error_like_others(fleet: Fleet) -> None:
    with pytest.raises(TimeoutError, match="mine"):
        fleet.call(_answering(fleet)[0], fleet_functions.time_out)


def test_map_gives_every_result_once(fleet: Fleet) -> None:
    assert dict(fleet.map(fleet_functions.double, range(200))) == {n: 2 * n for n in range(200)}
    assert list(fleet.map(fleet_functions.double, [])) == []


@pytest.mark.parametrize("on_one_node", [False, True])
def test_no_item_begins_that_the_lease_would_not_finish(fleet: Fleet, on_one_node: bool) -> None:
    calls: NodeCalls = OneNode(fleet.role) if on_one_node else fleet
    items, done = [0.05] * 200, list[object]()
    with pytest.raises(LeaseEndsError, match=r"\d+ items are left of up to 0 s") as caught:
        done.extend(calls.map(fleet_functions.work_for, items, left_s=lambda: 0.01))
    assert 1 <= len(done) <= fleet.role.nodes * fleet.role.threads_per_node
    assert caught.value.what.startswith(f"{len(items) - len(done)} items")
    end_s = time.monotonic() + 60.0
    items = [0.01] * 9
    for left_s in (lambda: 60.0, lambda: end_s - time.monotonic(), lambda: math.inf):
        assert len(list(calls.map(fleet_functions.work_for, items, left_s=left_s))) == 9


def test_the_time_of_the_caller_between_two_items_is_not_that_of_an_item(fleet: Fleet) -> None:
    results = OneNode(fleet.role).map(str, (1, 2), left_s=lambda: 1.0)
    assert next(results) == (0, "1")
    time.sleep(1.1)
    assert next(results) == (1, "2")


def test_map_uses_both_nodes(fleet: Fleet) -> None:
    done = dict(fleet.map(fleet_functions.pid_of_slot, range(24)))
    assert len(set(done.values())) == 2


def test_map_keeps_few_items_under_way(fleet: Fleet) -> None:
    """A list of a hundred thousand items must not flood the scheduler."""
    drawn = 0

    class Counting(list[int]):
        def __getitem__(self, index: int) -> int:  # type: ignore[override]
            nonlocal drawn
            drawn = max(drawn, index)
            return super().__getitem__(index)

    results = fleet.map(fleet_functions.double, Counting(range(100_000)))
    next(results)
    assert drawn < 100
    results.close()


def test_map_raises_what_the_function_raised(fleet: Fleet) -> None:
    """An error of the code is no loss: its own type, at once."""
    with pytest.raises(KeyError, match="three"):
        list(fleet.map(fleet_functions.refuse_three, range(10)))


def test_map_tries_again_when_a_worker_dies(fleet: Fleet, tmp_path: Path) -> None:
    results = dict(fleet.map(fleet_functions.die_once, [str(tmp_path / "died")]))
    assert results == {0: "alive"}


def test_map_tries_again_when_a_result_goes_with_its_worker(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask computes it once more by itself; here the worker that does so dies, too."""

    def wait_then_lose_it(*arguments: Any) -> list[Any]:
        done = now_done(*arguments)
        if done and len(list(tmp_path.iterdir())) == 1:
            os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)
        return done

    monkeypatch.setattr("headrace.clusters.fleet.now_done", wait_then_lose_it)
    # a worker counts as there until its scheduler sees that it has gone, and may be given the item
    monkeypatch.setattr(fleet_module, "MAX_LOSSES", 10)
    results = dict(fleet.map(fleet_functions.die_the_second_time, [str(tmp_path)]))
    assert results == {0: int((tmp_path / "2").read_text())}


def test_workers_that_go_one_after_the_other_are_one_loss_of_an_item(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when nodes are preempted together: the item is not given to the one that goes next."""
    pids = {fleet.call(node, os.getpid) for node in _answering(fleet)}

    original = fleet_module.wait_for_losses

    def wait_for_losses(check: Any) -> None:  # on a busy machine the second one takes longer to go
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), 60, "both workers to go")
        _answering(fleet)  # so their scheduler has seen it
        original(check)

    monkeypatch.setattr("headrace.clusters.fleet.wait_for_losses", wait_for_losses)
    (tmp_path / "pids").write_text(" ".join(map(str, pids)))
    items = [str(tmp_path)]
    monkeypatch.setattr(fleet_module, "MAX_LOSSES", 1)
    results = dict(fleet.map(fleet_functions.die_and_the_others_soon, items))
    assert results[0] not in pids


def test_map_gives_up_on_an_item_that_kills_its_workers(fleet: Fleet) -> None:
    with pytest.raises(WorkerLostError, match=r"Item 0 lost its worker 3 times; last worker node-"):
        list(fleet.map(fleet_functions.die, [None]))


def test_map_is_cancelled_by_its_check(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "MAX_LOSSES", 100)
    started = tmp_path / "started"
    items = [str(started)]

    def check() -> None:
        if started.exists() and started.read_text():
            raise StepCancelledError("asked in a test")

    with pytest.raises(StepCancelledError):
        list(fleet.map(fleet_functions.die_once, items, check=check))
    pid = int(started.read_text())
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the worker to die")


def test_a_call_on_each_node(fleet: Fleet, nodes: tuple[Node, ...]) -> None:
    assert fleet.on_nodes(fleet_functions.double, [(1,), (2,)], nodes) == [2, 4]
    assert [node.host for node in nodes] == ["127.0.0.1", "127.0.0.1"]


def test_on_nodes_raises_what_the_function_raised(fleet: Fleet, nodes: tuple[Node, ...]) -> None:
    with pytest.raises(ValueError, match="2 is refused"):
        fleet.on_nodes(fleet_functions.refuse, [(2,)], nodes[1:])


def test_on_nodes_names_the_worker_that_died(fleet: Fleet, nodes: tuple[Node, ...]) -> None:
    """pains 34: which node it was is said."""
    with pytest.raises(WorkerLostError, match=r"Worker node-1 on 127\.0\.0\.1 (died|has ended)"):
        fleet.on_nodes(fleet_functions.die, [(None,)], nodes[1:])


def test_on_nodes_sees_a_node_that_had_gone_before(fleet: Fleet, nodes: tuple[Node, ...]) -> None:
    """A task bound to a dead worker's address would wait for ever."""
    gone = Node(name="node-1", address="tcp://127.0.0.1:9", host="127.0.0.1", index=1)
    with pytest.raises(WorkerLostError, match=r"Worker node-1 on 127\.0\.0\.1 has ended"):
        fleet.on_nodes(fleet_functions.double, [(1,), (2,)], [nodes[0], gone])


def test_short_calls_run_while_the_node_is_held(
    fleet: Fleet, nodes: tuple[Node, ...], tmp_path: Path
) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    calls: list[int] = []

    def check() -> None:
        if started.exists() and started.read_text():
            calls.append(fleet.call(nodes[0], os.getpid))
            raise StepCancelledError("seen enough")

    arguments = [(str(started), str(ended))]
    with pytest.raises(StepCancelledError):
        fleet.on_nodes(fleet_functions.hold_until_unwanted, arguments, nodes[:1], check=check)
    assert calls == [int(started.read_text())]
    wait_until(ended.exists, 90, "the cancelled call to return")


def test_a_call_beside_others_is_wanted_until_its_block_ends(
    fleet: Fleet, nodes: tuple[Node, ...], tmp_path: Path
) -> None:
    """So nodes serve each other while the items of a map run on them."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    arguments: list[tuple[str, ...]] = [(str(started), str(ended)), ("",)]
    functions = fleet_functions.hold_until_unwanted
    with fleet.beside(functions, arguments, nodes) as has_ended:
        wait_until(started.exists, 90, "the call to start")
        wait_until(lambda: has_ended(1), 90, "the call to fail that lacks an argument")
        assert dict(fleet.map(fleet_functions.double, range(20)))[19] == 38
        assert not has_ended(0)
        assert not ended.exists()
    wait_until(ended.exists, 90, "the call to return")


def test_a_call_ends_when_its_driver_has_gone(lease: LeaseFolder, tmp_path: Path) -> None:
    """pains 34: a killed driver leaves no node held."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    driver = Fleet.open(lease)
    node = driver.nodes(2, 60)[0]
    driver._submit(
        cancellable_call.run,
        (fleet_functions.hold_until_unwanted, (str(started), str(ended)), "lonely", 60.0),
        key="lonely",
        workers=[node.address],
        resources={"NODE": 1},
    )
    wait_until(started.exists, 90, "the call to start")
    driver.client.close()
    wait_until(ended.exists, 90, "the call to return")


def _on_a_node(fleet: Fleet, started: str, check: Callable[[], None]) -> None:
    nodes = fleet.nodes(2, 60)[:1]
    fleet.on_nodes(fleet_functions.hold_for_ever, [(started,)], nodes, check=check)


def _as_an_item(fleet: Fleet, started: str, check: Callable[[], None]) -> None:
    """Else its slot would be taken for as long as the lease lives."""
    list(fleet.map(fleet_functions.hold_for_ever, [started], check=check))


@pytest.mark.parametrize("call", [_on_a_node, _as_an_item])
def test_a_call_that_does_not_listen_is_killed_with_its_worker(
    lease: LeaseFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., None]
) -> None:
    monkeypatch.setattr(cancellable_call, "GRACE_S", 0.5)
    started = tmp_path / "started"

    def check() -> None:
        if started.exists() and started.read_text():
            raise StepCancelledError("asked in a test")

    with Fleet.open(lease) as fleet, pytest.raises(StepCancelledError):
        call(fleet, str(started), check)
    pid = int(started.read_text())
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the worker to be killed")
    with Fleet.open(lease) as fleet:
        again = _answering(fleet)[:1]
        assert fleet.on_nodes(fleet_functions.double, [(5,)], again) == [10]


def test_a_worker_that_holds_the_gil_is_kept(fleet: Fleet, nodes: tuple[Node, ...]) -> None:
    """pains 21: Dask gives up a silent worker after ten heartbeats of half a second at least."""
    fleet.on_nodes(fleet_functions.hold_gil_for, [(7,), (7,)], nodes)
    assert fleet.nodes(2, 1) == nodes


def test_workers_may_have_children_by_multiprocessing(
    fleet: Fleet, nodes: tuple[Node, ...]
) -> None:
    """What a DataLoader with workers needs; Dask's own workers are daemonic."""
    assert fleet.on_nodes(fleet_functions.start_pool_of_processes, [([1, 2],)], nodes[:1]) == [
        [2, 4]
    ]


def test_more_nodes_than_there_are_is_told(fleet: Fleet) -> None:
    with pytest.raises(LeaseError, match=r"3 nodes requested of lease demo-1, which has at most 2"):
        fleet.nodes(3, 60)


def test_a_lease_that_is_not_ready_is_told(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path).lease("demo-2")
    spec = lease_spec(folder, Role())
    folder.path.mkdir(parents=True)
    folder.spec.write_text(spec.model_dump_json())
    with pytest.raises(LeaseLostError, match="demo-2 is not ready"):
        Fleet.open(folder)


def test_outside_a_held_call_one_is_wanted() -> None:
    assert wanted()
