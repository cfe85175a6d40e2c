"""The nodes of a suite, the part of a node that a trial gets, and GPUs shared by suites."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters.gpu_reservations import FOLDER, ReservationFile
from headrace.clusters.gpus import Gpu
from headrace.clusters.node_calls import Node
from headrace.clusters.shared_calls import EndedCall
from headrace.errors import LeaseError, StepCancelledError
from headrace.files.layout import StepFolder
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.suites import node_slots
from headrace.suites.node_slots import NodeCapacity, SharedGpus, gpus_at, part_of
from headrace.suites.nodes import SuiteNodes
from headrace.suites.schedule import Placement
from support.waiting import wait_until

BOX = NodeCapacity(machine="box", gpus=(Gpu(name="0"), Gpu(name="1")), cpus=(0, 1), memory_bytes=1)
Trials = Callable[..., AbstractContextManager[tuple[Gpu, ...]]]


@pytest.fixture(autouse=True)
def _own_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "claims"))


@pytest.fixture
def trial(tmp_path: Path) -> Trials:
    """A trial of a suite's process, which is given places of GPUs."""

    @contextmanager
    def hold(
        process: SharedGpus,
        *places: int,
        suite: str = "a",
        wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[tuple[Gpu, ...]]:
        folder = StepFolder(tmp_path / f"{suite}-{len(list(tmp_path.iterdir()))}")
        folder.path.mkdir()
        with process.gpus(BOX, places, suite, folder, wanted) as gpus:
            yield gpus

    return hold


def test_two_suites_never_have_the_same_gpu(trial: Trials, tmp_path: Path) -> None:
    """Each has both GPUs for its own by its own book, as its driver cannot know of the other."""
    one, other = SharedGpus(), SharedGpus()
    with trial(one, 0) as (first,), trial(other, 0, suite="b") as (second,):
        assert {first.name, second.name} == {"0", "1"}
        late = StepFolder(tmp_path / "late")
        late.path.mkdir()
        got: list[str] = []

        def run() -> None:
            with other.gpus(BOX, (1,), "b", late, lambda: True) as (gpu,):
                got.append(gpu.name)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(late.waits.exists, 30, "the third trial to wait")
        status = mailbox.status(late)
        assert status.state is StepState.QUEUED
        assert "waits for 1 GPU of" in status.progress.phase
        assert got == []
    thread.join()
    assert len(got) == 1
    assert not late.waits.exists()
    with trial(one) as none:
        assert none == ()


def test_trials_that_share_a_gpu_do_so_until_it_is_the_turn_of_others(
    trial: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SharedGpus()
    with trial(one, 0) as first, trial(one, 0) as second, ReservationFile("b", ("1",), 1) as other:
        assert first == second == BOX.gpus[:1]
        assert other.take()
        monkeypatch.setattr(node_slots, "_TURN_S", 0)
        with trial(one, 0) as third:  # nobody waits
            assert third == first
        with ReservationFile("b", ("0",), 1) as waiting:
            assert not waiting.take()
            asked = iter([True])
            with (
                pytest.raises(StepCancelledError),
                trial(one, 0, wanted=lambda: next(asked, False)),
            ):
                pass
    with ReservationFile("b", ("0", "1"), 2) as all_of_it:
        assert all_of_it.take()


def test_one_trial_of_a_suite_waits_in_line_and_others_behind_it(
    trial: Trials, tmp_path: Path
) -> None:
    one = SharedGpus()
    behind = StepFolder(tmp_path / "behind")
    behind.path.mkdir()
    with ReservationFile("b", ("0", "1"), 2) as other:
        assert other.take()
        stop = threading.Event()

        def wait(places: tuple[int, ...], folder: StepFolder) -> None:
            with (
                pytest.raises(StepCancelledError),
                one.gpus(BOX, places, "a", folder, lambda: not stop.is_set()),
            ):
                pass

        first = StepFolder(tmp_path / "first")
        first.path.mkdir()
        threads = [threading.Thread(target=wait, args=((0,), first))]
        threads[0].start()
        wait_until(first.waits.exists, 30, "the first to wait")
        threads.append(threading.Thread(target=wait, args=((1,), behind)))
        threads[1].start()
        wait_until(behind.waits.exists, 30, "the second to wait")
        assert "after another trial" in behind.waits.read_text()
        assert len(other.others()) == 1
        stop.set()
        for thread in threads:
            thread.join()
    assert not any(folder.waits.exists() for folder in (first, behind))


def test_a_part_of_a_node_is_named_to_processes():
    gpus = tuple(Gpu(name=name) for name in ("4", "MIG-b"))
    node = NodeCapacity(machine="gpu-7", gpus=gpus, cpus=(0, 1), memory_bytes=8 * 2**30)
    assert part_of(node, gpus_at(node, (1, 0)), (2, 5)) == {
        "CUDA_VISIBLE_DEVICES": "MIG-b,4",
        "HEADRACE_CPUS": "2,5",
        "HEADRACE_MEMORY_BYTES": "0",
    }
    assert part_of(node, (), ()) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "HEADRACE_MEMORY_BYTES": str(8 * 2**30),
    }
    with pytest.raises(LeaseError, match="GPU 2 was assigned, but the node has 2"):
        gpus_at(node, (0, 2))


_GPUS = (Gpu(name="0"), Gpu(name="1"))


class _Calls:
    """The nodes that a test says are there."""

    role = Role(kind="pool", nodes=4)

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.asked: list[Node] = []

    def there(self) -> tuple[Node, ...]:
        return tuple(
            Node(name, f"tls://{name}", "", index) for index, name in enumerate(sorted(self.names))
        )

    def left_s(self) -> dict[str, float]:
        return {"node-1": 60.0} if "node-0" in self.names else {}

    def begin(self, tag: Node, node: Node, function: Callable[..., Any]) -> None:
        self.asked.append(node)

    def drop_lost(self, nodes: tuple[Node, ...]) -> list[EndedCall]:
        return []


def test_what_runs_on_a_node_is_known_when_another_one_comes_before_it() -> None:
    calls = _Calls()
    machines = SuiteNodes(calls, load_recipe("digits"), NodeCapacity)  # type: ignore[arg-type]
    calls.names = ("node-1",)
    machines.look()
    (node,) = calls.asked
    told = NodeCapacity(machine="m-1", gpus=_GPUS, cpus=(0, 1, 2, 3), memory_bytes=1)
    assert machines.joined(node, told)
    (resources,) = machines.resources
    allocation = resources.allocation(machines.needs({}))
    assert allocation is not None
    resources.take(allocation)
    machines.hold(Placement(number=1, allocations=(allocation,)))
    calls.names = ("node-0", "node-1")
    machines.look()
    assert [each.name for each in calls.asked] == ["node-1", "node-0"]
    assert [(each.running, each.left_s) for each in machines.resources] == [(1, 60.0)]
    assert machines.node("node-1").index == 1
    assert not machines.joined(calls.asked[1], told)
    assert not resources.is_staged
    machines.release(1, has_staged=True)
    assert resources.is_staged
    assert [(each.name, each.running) for each in machines.resources] == [
        ("node-1", 0),
        ("node-0", 0),
    ]
