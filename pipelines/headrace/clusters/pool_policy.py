"""When a pool asks for nodes and gives them back: pure decisions of its host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.recipe.site import Role

MAX_FAILURES = 3
"""A pool without a node is given up when so many jobs in a row ended before they were of use."""

MAX_UNUSED = 10
"""A pool without a node is given up when so many jobs in a row were cancelled unused."""

SETTLED_S = 20.0
"""A node that was there for so long, in seconds, shows that nodes can be of use."""

_LONGEST_PAUSE_S = 300.0


class Stage(str, Enum):
    """How far a node of a pool has come."""

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
    """Its place, from 0; nobody else has it until its job has ended."""
    stage: Stage
    since_s: float
    is_leaving: bool = False
    is_old: bool = False
    """Whether its time is over, or its machine about to be taken away."""
    is_bound: bool = False
    """Whether it does work that only this node can do."""


@dataclass(frozen=True, kw_only=True)
class ScalingPlan:
    """What is done now."""

    submit: int = 0
    cancel: tuple[int, ...] = ()
    """Nodes that wait in the queue and are not wanted any more."""
    retire: tuple[int, ...] = ()
    """Nodes to send away: their work, if any, goes to others."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Jobs in a row that came to nothing, since a node was of use; times as above."""

    count: int = 0
    """Jobs that ended by themselves; those asked for at once count once."""
    num_forgiven: int = 0
    """Such jobs that count no more, since the pool does without their node."""
    last_s: float = -math.inf
    """When the last of them was seen."""
    num_unused: int = 0
    """Jobs that were cancelled before they started."""

    @property
    def submit_after_s(self) -> float:
        """No job is submitted before: the pauses double."""
        if not self.count:
            return -math.inf
        return self.last_s + min(2.0 ** (self.count - 1), _LONGEST_PAUSE_S)

    @property
    def are_too_many(self) -> bool:
        """Whether a pool without any node is given up."""
        return self.count >= MAX_FAILURES or self.num_unused >= MAX_UNUSED

    def after_failure(self, asked_s: float, now_s: float) -> Failures:
        """With a job that was submitted at `asked_s` and ended by itself."""
        if asked_s <= self.last_s:  # it was on its way when the last failure was seen
            return self
        return replace(self, count=self.count + 1, last_s=now_s)

    def after_blame(self) -> Failures:
        """With one forgiven: a node was found to blame that the pool does without from now on."""
        if self.count <= 1:  # that one may be the next node's as well
            return self
        return replace(self, count=self.count - 1, num_forgiven=self.num_forgiven + 1)

    def after_unused(self) -> Failures:
        """With a job that was cancelled before it started."""
        return replace(self, num_unused=self.num_unused + 1)

    def after_presence(self, asked_s: float, joined_s: float, now_s: float) -> Failures:
        """With a node that is there, whose job was submitted at `asked_s`."""
        if asked_s > self.last_s and now_s - joined_s >= SETTLED_S:
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
    """What to do now with the nodes whose jobs have not ended, when clients have work for some.

    Since `surplus_since_s` there have been more than that; None when there are not.
    """
    old = [node.number for node in nodes if _is_over(node)]
    staying = staying_nodes(nodes)
    wanted = min(wanted, role.nodes)
    lacking = min(wanted - len(staying), role.nodes - len(nodes))
    if failures.count > 1:  # one job at a time shows whether it is better now
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
    """Those that nothing sends away."""
    return [node for node in nodes if not node.is_leaving and not _is_over(node)]


def _is_over(node: PoolNode) -> bool:
    return node.is_old and node.stage.is_here and not node.is_leaving and not node.is_bound
