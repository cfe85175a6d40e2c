"""Failures of a pool's jobs: which nodes it avoids, and when it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.batch.job_records import JobState, JobView
from headrace.clusters.lease_records import AvoidedNode
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.pool_policy import Failures
from headrace.clusters.preflight import most_common, telling_lines
from headrace.errors import HeadraceError, JobRefusedError, LeaseError
from headrace.states import EndedJob, FailureClass

logger = logging.getLogger(__name__)

BAD_ENDS = 2
"""Bad ends of jobs on a node after which it is avoided."""

AVOIDED_S = 3600.0
"""Time after which an avoided node is tried again, seconds: it may have been repaired."""

MAX_AVOIDED = 8
"""Most avoided nodes, the newest ones: if more are bad, the cluster has another fault."""

_MAX_ENDED = 20
_STUCK_S = 10.0
_NUM_NODES = 2
_MEND = "Correct `batch` (container, python, modules, prologue) or the tiers of the role."


@dataclass(frozen=True, kw_only=True)
class _BadEnds:
    """Jobs that ended badly on one node: their number, cause and time of the last."""

    node: str
    count: int
    cause: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Avoidance:
    """Nodes to avoid; times on one clock, in seconds."""

    before: tuple[str, ...] = ()
    """Nodes on which earlier leases of the run failed."""
    since_s: float = 0.0
    """Since when those are avoided."""
    ends: tuple[_BadEnds, ...] = ()
    """Nodes on which jobs of this pool ended badly, the newest last."""
    lifted: str = ""
    """Why all nodes are used despite failures; empty if some are avoided."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that further jobs must not get."""
        return () if self.lifted else self.blamed

    @property
    def blamed(self) -> tuple[str, ...]:
        """Nodes with failures, even if all nodes are used."""
        return tuple(dict.fromkeys((*self.before, *(each.node for each in self._bad))))

    @property
    def avoided(self) -> tuple[AvoidedNode, ...]:
        """Nodes on which jobs of this pool ended badly, the newest last, and why."""
        return () if self.lifted else self._bad

    @property
    def _bad(self) -> tuple[AvoidedNode, ...]:
        return tuple(
            AvoidedNode(node=each.node, why=f"{each.count} jobs ended badly there: {each.cause}")
            for each in self.ends
            if each.count >= BAD_ENDS
        )[-MAX_AVOIDED:]

    def after(self, node: str, cause: str, now_s: float = 0.0) -> Avoidance:
        """Return this with a job that ended badly on a node; its name is empty if unknown."""
        if not node:
            return self
        count = 1 + sum(each.count for each in self.ends if each.node == node)
        others = (each for each in self.ends if each.node != node)
        ends = _BadEnds(node=node, count=count, cause=cause, at_s=now_s)
        return replace(self, ends=(*others, ends))

    def at(self, now_s: float) -> Avoidance:
        """Return this at a later time: old failures expire."""
        ends = tuple(each for each in self.ends if now_s - each.at_s < AVOIDED_S)
        before = self.before if now_s - self.since_s < AVOIDED_S else ()
        return replace(self, before=before, ends=ends)

    def without_any(self, why: str) -> Avoidance:
        """Return this with all nodes used from now on; the first reason stays."""
        return replace(self, lifted=self.lifted or why)


class FailureTracker:
    """Failures of a pool's jobs, tracked by its host.

    It begins with nodes to exclude, or with the reason why no node can be excluded, for users.

    Attributes:
        failures: Recent failed jobs.
        avoidance: Nodes that are at fault.
        last_end: How the last failed job ended, with the last lines of its log.
        ended: The last failed jobs, the newest last.
        failure: Why the pool can have no nodes; None if it can.
        view: The same for the lease's records.
    """

    def __init__(self, exclude: tuple[str, ...], powerless: str = "") -> None:
        self.failures = Failures()
        self.avoidance = Avoidance(before=exclude, since_s=time.monotonic(), lifted=powerless)
        self.last_end = ""
        self.ended: tuple[EndedJob, ...] = ()
        self.failure: HeadraceError | None = None
        self.view: JobView | None = None
        self._symptoms: dict[str, set[str]] = {}
        self._have_joined = False
        self._stuck_since_s: float | None = None

    def record_failure(self, job: PoolJob, why: str, words: str = "") -> None:
        """Count a job that has ended by itself, or did not do what it should.

        `why`, and `words`, the last lines of its log, are for users.
        """
        now_s = time.monotonic()
        self.last_end = f"{why}\n{words}" if words else why
        is_common = self._is_common(job, words)
        if job.job_status.state is not JobState.PREEMPTED:  # the queue will start it again
            self.failures = self.failures.after_failure(job.asked_s, now_s)
        ended = EndedJob(node=job.name, job_id=job.job_id, host=job.host, why=why)
        self.ended = (*self.ended, ended)[-_MAX_ENDED:]
        if is_common or not job.speaks_against_node(now_s):
            return
        known = self.avoidance.blamed
        self.avoidance = self.avoidance.after(job.host, why, now_s)
        if set(self.avoidance.blamed) - set(known):
            self._blame(job.host, why)

    def _is_common(self, job: PoolJob, words: str) -> bool:
        """Whether a job failed as on another node: then no node is at fault, and none will work.

        If other nodes have joined, nodes that do not are at fault all the same.
        """
        symptom = most_common(telling_lines(words))
        if symptom is None or self._have_joined:
            return False
        nodes = self._symptoms.setdefault(symptom.words, set())
        nodes.add(job.host or job.job_id)
        if len(nodes) < _NUM_NODES:
            return False
        what = f"{symptom.words}\n  It was the same on {len(nodes)} nodes; none is at fault"
        self.refuse(LeaseError(what, _MEND))
        return True

    def _blame(self, node: str, why: str) -> None:
        if self.avoidance.lifted:
            logger.warning("Not avoiding %s: %s. %s", node, self.avoidance.lifted, why)
            return
        logger.warning("Avoiding %s: %s", node, self.avoidance.avoided[-1].why)
        self.failures = self.failures.after_blame()

    def record_presence(self, job: PoolJob, now_s: float) -> None:
        """Record a joined node: after a while it resets the failures."""
        if job.joined_s is not None:
            self._have_joined = True
            self.failures = self.failures.after_presence(job.asked_s, job.joined_s, now_s)

    def take_all_nodes(self, why: str) -> None:
        """Avoid no node any more; log why."""
        if self.avoidance.nodes:
            logger.warning("Using all nodes again: %s", why)
            self.avoidance = self.avoidance.without_any(why)

    def forgive(self, now_s: float) -> None:
        """Use nodes again that the pool has avoided for long enough."""
        known, self.avoidance = self.avoidance.nodes, self.avoidance.at(now_s)
        back = [node for node in known if node not in self.avoidance.nodes]
        if back:
            logger.warning("Using %s again after %g s", ", ".join(back), AVOIDED_S)

    def find_stuck(self, jobs: Iterable[PoolJob], now_s: float) -> list[PoolJob]:
        """Return jobs that could only get avoided nodes, since all others are down or drained.

        They are to be cancelled: after a while the pool uses all nodes from then on.
        """
        stuck = [each for each in jobs if each.is_kept_from_nodes]
        if not stuck:
            self._stuck_since_s = None
            return []
        self._stuck_since_s = self._stuck_since_s or now_s
        if now_s - self._stuck_since_s < _STUCK_S:
            return []
        self.take_all_nodes(f"the others are down or drained ({stuck[0].job_status.reason})")
        return stuck

    def may_start_otherwise(self, job: PoolJob, why: str) -> bool:
        """Whether another job may start instead of one that can never start.

        True if the pool avoided nodes, and now uses all; otherwise the pool fails.
        """
        if job.request.exclude:
            self.take_all_nodes(why)
            return True
        self.refuse(JobRefusedError(why, "Correct the role's `batch` settings in the site."))
        return False

    def fail_if_exhausted(self) -> None:
        """Let a pool without nodes fail if it has too many failures."""
        count, num_unused = self.failures.count, self.failures.num_unused
        if not self.failures.are_too_many:
            return
        self.take_all_nodes("jobs fail on other nodes, too")
        if num_unused > count:
            what = f"{num_unused} jobs in a row were cancelled before they started"
            hint = "Raise the role's keep_nodes, so that they wait longer in the queue."
            self._fail(LeaseError(what, hint), FailureClass.CAPACITY)
        else:
            num_failed = count + self.failures.num_forgiven
            what = f"{num_failed} jobs in a row failed; last: {self.last_end}"
            self.refuse(
                LeaseError(what, "The logs of its jobs are in `jobs` of the lease's folder.")
            )

    def refuse(self, error: HeadraceError) -> None:
        """Let the pool fail: retrying its jobs would not help."""
        self._fail(error, FailureClass.USER_ERROR)

    def _fail(self, error: HeadraceError, failure_class: FailureClass) -> None:
        logger.error("The pool fails: %s", error)
        self.failure = error
        self.view = JobView(is_ended=True, why=error.what, failure_class=failure_class)
