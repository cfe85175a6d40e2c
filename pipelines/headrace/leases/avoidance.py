"""Which nodes a pool does without, since its jobs ended badly there; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.batch.jobs import JobState
from headrace.leases.records import AvoidedNode
from headrace.leases.scaling import SETTLED_S

BAD_ENDS = 2
"""A node is avoided after so many jobs that ended badly on it."""

AVOIDED_S = 3600.0
"""A node is tried again after this time, in seconds: somebody may have mended it."""

MOST_AVOIDED = 8
"""Not more nodes are avoided, the newest ones: a cluster of bad nodes has another fault."""


def is_nodes_fault(state: JobState, here_s: float | None) -> bool:
    """Whether the end of a node's job speaks against the node.

    A job that was cancelled, preempted or out of time or memory would have been so elsewhere.

    Args:
        state: How the job ended.
        here_s: Seconds since its worker joined; None when it never did.
    """
    if state is JobState.NODE_FAILED:
        return True
    return state is JobState.FAILED and (here_s is None or here_s < SETTLED_S)


@dataclass(frozen=True, kw_only=True)
class BadEnds:
    """Jobs that ended badly on one node."""

    node: str
    """Name of the node, as the batch system knows it."""
    count: int
    """How many."""
    cause: str
    """How the last one ended, for the user."""
    at_s: float
    """When that was."""


@dataclass(frozen=True, kw_only=True)
class Avoidance:
    """What a pool knows against nodes; times on one clock, in seconds."""

    before: tuple[str, ...] = ()
    """Nodes that earlier leases of the run have failed on."""
    since_s: float = 0.0
    """Since when it does without those."""
    ends: tuple[BadEnds, ...] = ()
    """Nodes that jobs of this pool ended badly on, the newest last."""
    lifted: str = ""
    """Why it takes all nodes, whatever speaks against them; empty as long as it does not."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that further jobs must not get."""
        return () if self.lifted else self.blamed

    @property
    def blamed(self) -> tuple[str, ...]:
        """The same, whether or not it takes all nodes."""
        own = (each.node for each in self._bad)
        return tuple(dict.fromkeys((*self.before, *own)))

    @property
    def avoided(self) -> tuple[AvoidedNode, ...]:
        """Nodes that jobs of this pool ended badly on, the newest last, and why."""
        return () if self.lifted else self._bad

    @property
    def _bad(self) -> tuple[AvoidedNode, ...]:
        return tuple(
            AvoidedNode(node=each.node, why=f"{each.count} jobs ended badly there: {each.cause}")
            for each in self.ends
            if each.count >= BAD_ENDS
        )[-MOST_AVOIDED:]

    def after(self, node: str, cause: str, now_s: float = 0.0) -> Avoidance:
        """After a job that ended badly.

        Args:
            node: Where; empty when that is not known.
            cause: How, for the user.
            now_s: When.
        """
        if not node:
            return self
        count = 1 + sum(each.count for each in self.ends if each.node == node)
        others = (each for each in self.ends if each.node != node)
        ends = BadEnds(node=node, count=count, cause=cause, at_s=now_s)
        return replace(self, ends=(*others, ends))

    def at(self, now_s: float) -> Avoidance:
        """What counts now: nothing does for ever."""
        ends = tuple(each for each in self.ends if now_s - each.at_s < AVOIDED_S)
        before = self.before if now_s - self.since_s < AVOIDED_S else ()
        return replace(self, before=before, ends=ends)

    def without_any(self, why: str) -> Avoidance:
        """From now on all nodes will do.

        Args:
            why: For the user.
        """
        return replace(self, lifted=self.lifted or why)
