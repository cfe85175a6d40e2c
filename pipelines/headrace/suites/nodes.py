"""The nodes of a suite's lease as they come and go, and the needs of trials."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from headrace.clusters.node_calls import Node
from headrace.clusters.shared_calls import EndedCall, SharedCalls
from headrace.errors import LeaseError
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.suite import SuiteSpec
from headrace.suites.event_log import Needs
from headrace.suites.schedule import Allocation, NodeResources, Placement, Resources

if TYPE_CHECKING:
    from headrace.suites.node_slots import NodeCapacity

logger = logging.getLogger(__name__)

_MOST_ON_A_GPU = 16
_USED_SHARE = 0.9  # what a trial took is not all that the next one may take

_PATIENCE_S = 5.0  # for a node that is asked

Capacity = Callable[[], "NodeCapacity"]


class SuiteNodes(Needs):
    """The present nodes, with the free resources of each.

    Args:
        calls: The lease's nodes.
        recipe: The suite's.
        capacity: Called on each node; returns what it has.
    """

    def __init__(self, calls: SharedCalls, recipe: Recipe, capacity: Capacity) -> None:
        self._calls, self._recipe, self._capacity = calls, recipe, capacity
        self._suite = recipe.suite or SuiteSpec()
        self._nodes: dict[str, Node] = {}
        self._resources: dict[str, NodeResources] = {}
        self._held: dict[int, tuple[Allocation, ...]] = {}
        self._gpu_bytes: int | None = None
        self._per_gpu = 1
        self._has_gpus = bool(calls.role.batch.gpus_per_node)
        self._has_told = False
        self._bare_since_s = time.monotonic()
        self._asked_s = float("-inf")

    @property
    def is_asking(self) -> bool:
        """Whether a new node has not reported its capacity: trials wait, to be spread."""
        is_late = time.monotonic() - self._asked_s > _PATIENCE_S
        return not is_late and len(self._resources) < len(self._nodes)

    @property
    def resources(self) -> list[NodeResources]:
        """Nodes that have reported their capacity."""
        return list(self._resources.values())

    @property
    def per_gpu(self) -> int:
        """Trials that share a GPU."""
        number = self._suite.trials_per_gpu
        return self._per_gpu if number == "auto" else number

    def look(self) -> list[EndedCall]:
        """Ask new nodes for their capacity; return the calls that ended with lost nodes."""
        there = {node.name: node for node in self._calls.there()}
        for name, node in list(self._nodes.items()):
            if not _is_same(there.get(name), node):
                del self._nodes[name]
                self._resources.pop(name, None)
        for name, node in there.items():
            if name not in self._nodes:
                self._asked_s = time.monotonic()
                self._calls.begin(node, node, self._capacity)
        self._nodes = there
        left_s = self._calls.left_s()
        for name, resources in self._resources.items():
            resources.left_s = left_s.get(name, math.inf)
        return self._calls.drop_lost(tuple(there.values()))

    def joined(
        self, node: Node, capacity: NodeCapacity | None, error: BaseException | None = None
    ) -> bool:
        """Record a node's capacity; without one the node is asked again.

        Returns:
            Whether needs of trials may have changed.
        """
        if not _is_same(self._nodes.get(node.name), node):
            return False
        if capacity is None:
            logger.warning("%s did not report its capacity: %s", node.name, error or "it ended")
            del self._nodes[node.name]
            return False
        before = (self._has_told, self._has_gpus)
        self._has_gpus = bool(capacity.gpus) or before == (True, True)
        self._has_told = True
        self._resources[node.name] = NodeResources(
            node.name,
            len(capacity.gpus),
            capacity.cpus,
            self._suite.trials_per_node,
            capacity.machine,
        )
        sizes = [gpu.memory_bytes for gpu in capacity.gpus if gpu.memory_bytes]
        self._gpu_bytes = min(
            [*sizes, *([self._gpu_bytes] if self._gpu_bytes else [])], default=None
        )
        return before != (True, self._has_gpus)

    def node(self, name: str) -> Node:
        """Return the node of a name."""
        return self._nodes[name]

    def hold(self, placement: Placement) -> None:
        """Record that a trial has started on its nodes."""
        self._held[placement.number] = placement.allocations

    def release(self, number: int, *, has_staged: bool = False, is_lost: bool = False) -> None:
        """Record that a trial has left its nodes.

        Its nodes keep the data that it staged. Nodes that were lost count again when they report.
        """
        for allocation in self._held.pop(number, ()):
            resources = allocation.node
            resources.give_back(allocation)
            resources.is_staged = resources.is_staged or has_staged
            if is_lost and self._resources.get(resources.name) is resources:
                del self._resources[resources.name], self._nodes[resources.name]

    def learn(self, gpu_bytes: int | None) -> bool:
        """Record the GPU memory that a trial used; return whether the number per GPU changed."""
        if self._suite.trials_per_gpu != "auto":
            return False
        before, self._per_gpu = self._per_gpu, fitting(self._gpu_bytes, gpu_bytes, self._per_gpu)
        return before != self._per_gpu

    @property
    def _usual(self) -> NodeResources:
        """A typical node, as far as is known."""
        role = self._calls.role
        cpus = range(role.cpus_per_node)
        num_gpus = role.batch.gpus_per_node or role.ranks_per_node
        guess = NodeResources("", num_gpus, cpus, self._suite.trials_per_node)
        return next(iter(self._resources.values()), guess)

    def most_at_once(self) -> int:
        """Return about how many trials could run at once on all nodes."""
        return self._calls.role.nodes * max(self._usual.holds(self.needs({})), 1)

    def ask_for(self, waiting: Mapping[Resources, int], most: int) -> None:
        """Scale the pool to the number of nodes that there is work for.

        Args:
            waiting: Number of trials without room now, by their needs.
            most: How many of them may start.

        Raises:
            LeaseError: There is work, and no node comes.
        """
        usual = self._usual
        count = float(sum(resources.running > 0 for resources in self._resources.values()))
        for needs, trials in waiting.items():
            trials, most = min(trials, most), most - min(trials, most)
            if trials:
                count += max(trials * needs.nodes / max(usual.holds(needs), 1), needs.nodes)
        self._calls.ask_for(math.ceil(count))
        self._check_nodes(is_waiting=bool(count))

    def _check_nodes(self, *, is_waiting: bool) -> None:
        if self._nodes or not is_waiting or self._calls.are_queued():
            self._bare_since_s = time.monotonic()
        elif time.monotonic() - self._bare_since_s > self._calls.role.start_timeout:
            raise LeaseError(
                f"No node of the lease was there for {self._calls.role.start_timeout:g} s",
                "See host.log in the lease's folder.",
            )

    def why_never(self, needs: Resources) -> str:
        """Return why a trial can never start on these machines; empty if it can."""
        role = self._calls.role
        if needs.nodes > role.nodes:
            return f"It takes {needs.nodes} nodes, and its role has at most {role.nodes}"
        most = max(
            (resources.num_gpus for resources in self._resources.values()), default=needs.gpus
        )
        return (
            f"It takes {needs.gpus} GPUs of a node, which has {most}" if needs.gpus > most else ""
        )

    def needs(self, values: Mapping[str, JsonValue]) -> Resources:
        """Return the needs of a trial with these values on the present nodes."""
        return needs_of(self._recipe, self._calls.role, values, self._has_gpus, self.per_gpu)


def needs_of(
    recipe: Recipe, role: Role, values: Mapping[str, JsonValue], has_gpus: bool, per_gpu: int
) -> Resources:
    """Return the needs of a trial: one node with one rank unless its recipe sets more.

    A trial of one rank may share its GPU; a trial of several has its GPUs for itself.
    """
    train = recipe.train
    nodes = _whole(values.get("train.nodes", train.nodes)) or 1
    ranks = _whole(values.get("train.ranks_per_node", train.ranks_per_node)) or 1
    accelerator = values.get("trainer.accelerator", recipe.trainer.accelerator)
    on_gpus = accelerator == "gpu" or (accelerator == "auto" and has_gpus)
    return Resources(
        nodes=nodes,
        gpus=ranks if on_gpus else 0,
        share=1 / per_gpu if ranks == nodes == 1 else 1.0,
        cpus=ranks * role.threads_per_rank,
        alone=nodes > 1,
    )


def slots_of(recipe: Recipe, role: Role) -> int:
    """Return how many trials a role has room for at once, as far as known without its nodes."""
    suite, num_gpus = recipe.suite or SuiteSpec(), role.batch.gpus_per_node
    per_gpu = suite.trials_per_gpu if isinstance(suite.trials_per_gpu, int) else 1
    cpus = [*os.sched_getaffinity(0)] if role.is_here else range(role.cpus_per_node)
    node = NodeResources("", num_gpus or role.ranks_per_node, cpus, suite.trials_per_node)
    needs = needs_of(recipe, role, {}, bool(num_gpus), per_gpu)
    return max(role.nodes * max(node.holds(needs), 1) // needs.nodes, 1)


def fitting(gpu_bytes: int | None, taken_bytes: int | None, before: int) -> int:
    """Return how many trials fit on a GPU if one used `taken_bytes` of its memory."""
    if not gpu_bytes or not taken_bytes:
        return before
    fit = max(min(int(_USED_SHARE * gpu_bytes / taken_bytes), _MOST_ON_A_GPU), 1)
    return fit if before == 1 else min(fit, before)


def _is_same(now: Node | None, before: Node) -> bool:
    """Whether a node is the one of before: its place among the others may have changed."""
    return now is not None and now.address == before.address


def _whole(value: JsonValue) -> int | None:
    return value if isinstance(value, int) else None
