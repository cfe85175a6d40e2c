"""When a pool submits and retires nodes: pure decisions of its host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.recipe.site import Role

MAX_FAILURES = 3
"""Failed jobs in a row after which a pool without a node fails."""

MAX_UNUSED = 10
"""Jobs in a row cancelled unused after which a pool without a node fails."""

STABLE_S = 20.0
"""Time that a node must be present to reset the failures, seconds."""

_LONGEST_PAUSE_S = 300.0


class Stage(str, Enum):
    """Progress of a node of a pool."""

    QUEUED = "queued"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"

    @property
    def is_here(self) -> bool:
        """Whether its worker has joined."""
        return self in (Stage.IDLE, Stage.BUSY)


@dataclass(frozen=True, kw_only=True)
class PoolNode:
    """One node of a pool at one moment."""

    number: int
    """Its index, from 0; unique until its job has ended."""
    stage: Stage
    since_s: float
    is_leaving: bool = False
    is_old: bool = False
    """Whether its time is over, or its machine is about to be taken away."""
    is_bound: bool = False
    """Whether it does work that only this node can do."""


@dataclass(frozen=True, kw_only=True)
class ScalingPlan:
    """Actions of the loop."""

    submit: int = 0
    cancel: tuple[int, ...] = ()
    """Nodes that wait in the queue and are not wanted any more."""
    retire: tuple[int, ...] = ()
    """Nodes to retire: their work, if any, goes to others."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Failed jobs in a row since a node was stable; times as above."""

    count: int = 0
    """Jobs that ended by themselves; those submitted together count once."""
    num_forgiven: int = 0
    """Failed jobs that no longer count, since the pool avoids their node."""
    last_s: float = -math.inf
    """When the last of them was noticed."""
    num_unused: int = 0
    """Jobs that were cancelled before they started."""

    @property
    def submit_after_s(self) -> float:
        """Time before which no job is submitted: the pauses double."""
        if not self.count:
            return -math.inf
        return self.last_s + min(2.0 ** (self.count - 1), _LONGEST_PAUSE_S)

    @property
    def are_too_many(self) -> bool:
        """Whether a pool without any node fails."""
        return self.count >= MAX_FAILURES or self.num_unused >= MAX_UNUSED

    def after_failure(self, asked_s: float, now_s: float) -> Failures:
        """Return this with a job that was submitted at `asked_s` and ended by itself."""
        if asked_s <= self.last_s:  # it was submitted before the last failure was noticed
            return self
        return replace(self, count=self.count + 1, last_s=now_s)

    def after_blame(self) -> Failures:
        """Return this with one failure forgiven, since its node is avoided from now on."""
        if self.count <= 1:  # the next node may fail in the same way
            return self
        return replace(self, count=self.count - 1, num_forgiven=self.num_forgiven + 1)

    def after_unused(self) -> Failures:
        """Return this with a job that was cancelled before it started."""
        return replace(self, num_unused=self.num_unused + 1)

    def after_presence(self, asked_s: float, joined_s: float, now_s: float) -> Failures:
        """Return this with a joined node, whose job was submitted at `asked_s`."""
        if asked_s > self.last_s and now_s - joined_s >= STABLE_S:
            return Failures()
        return replace(self, num_unused=0) if self.num_unused else self


def plan(
    nodes: Sequence[PoolNode],
    wanted: int,
    role: Role,
    failures: Failures,
    *,
    now_s: float,
    surplus_since_s: float | None,
) -> ScalingPlan:
    """Plan submissions and retirements, for nodes whose jobs have not ended and `wanted` nodes.

    There have been more nodes than `wanted` since `surplus_since_s`; None if there are not.
    """
    old = [node.number for node in nodes if _is_over(node)]
    staying = staying_nodes(nodes)
    wanted = min(wanted, role.nodes)
    lacking = min(wanted - len(staying), role.nodes - len(nodes))
    if failures.count > 1:  # one job at a time tests whether nodes work now
        on_trial = any(not node.stage.is_here for node in staying)
        lacking = min(lacking, 0 if on_trial else 1)
    if now_s < failures.submit_after_s:
        lacking = 0
    given = ScalingPlan(submit=max(lacking, 0), retire=tuple(old))
    surplus = len(staying) - wanted
    if surplus <= 0 or surplus_since_s is None or now_s - surplus_since_s < role.keep_nodes:
        return given
    queued = [node for node in staying if node.stage is Stage.QUEUED]
    queued = sorted(queued, key=lambda node: -node.since_s)[:surplus]
    idle = [node for node in staying if node.stage is Stage.IDLE]
    idle = [node for node in idle if now_s - node.since_s >= role.keep_nodes]
    idle = sorted(idle, key=lambda node: node.since_s)[: surplus - len(queued)]
    cancel = tuple(node.number for node in queued)
    return replace(given, cancel=cancel, retire=(*old, *(node.number for node in idle)))


def staying_nodes(nodes: Sequence[PoolNode]) -> list[PoolNode]:
    """Return the nodes that are not retired."""
    return [node for node in nodes if not node.is_leaving and not _is_over(node)]


def _is_over(node: PoolNode) -> bool:
    return node.is_old and node.stage.is_here and not node.is_leaving and not node.is_bound
