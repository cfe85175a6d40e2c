"""The nodes of a suite's lease, as they come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.clusters.gpus import Gpu
from headrace.clusters.node_calls import Node
from headrace.clusters.shared_calls import EndedCall
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role
from headrace.suites.node_slots import NodeCapacity
from headrace.suites.nodes import AskedNode, SuiteNodes
from headrace.suites.schedule import Placement

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

    def begin(self, tag: AskedNode, node: Node, function: Callable[..., Any]) -> None:
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
