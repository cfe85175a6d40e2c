"""What went wrong with the jobs of a pool: which nodes it does without, and when it is given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.batch.job_records import JobState, JobView
from headrace.clusters.lease_jobs import most_common, telling_lines
from headrace.clusters.lease_records import AvoidedNode
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.pool_policy import Failures
from headrace.errors import HeadraceError, JobRefusedError, LeaseError
from headrace.states import EndedJob, FailureClass

logger = logging.getLogger(__name__)

BAD_ENDS = 2
"""A node is avoided after so many jobs that ended badly on it."""

AVOIDED_S = 3600.0
"""A node is tried again after this time, in seconds: somebody may have mended it."""

MAX_AVOIDED = 8
"""Not more nodes are avoided, the newest ones: a cluster of bad nodes has another fault."""

_MAX_ENDED = 20
_STUCK_S = 10.0
_NUM_NODES = 2
_MEND = "Correct `batch` (container, python, modules, prologue) or the tiers of the role."


@dataclass(frozen=True, kw_only=True)
class _BadEnds:
    """Jobs that ended badly on one node: how many, how the last one did, and when."""

    node: str
    count: int
    cause: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Avoidance:
    """What a pool knows against nodes; times on one clock, in seconds."""

    before: tuple[str, ...] = ()
    """Nodes that earlier leases of the run have failed on."""
    since_s: float = 0.0
    """Since when it does without those."""
    ends: tuple[_BadEnds, ...] = ()
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
        return tuple(dict.fromkeys((*self.before, *(each.node for each in self._bad))))

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
        )[-MAX_AVOIDED:]

    def after(self, node: str, cause: str, now_s: float = 0.0) -> Avoidance:
        """With a job that ended badly on a node, whose name is empty where it is not known."""
        if not node:
            return self
        count = 1 + sum(each.count for each in self.ends if each.node == node)
        others = (each for each in self.ends if each.node != node)
        ends = _BadEnds(node=node, count=count, cause=cause, at_s=now_s)
        return replace(self, ends=(*others, ends))

    def at(self, now_s: float) -> Avoidance:
        """What counts now: nothing does for ever."""
        ends = tuple(each for each in self.ends if now_s - each.at_s < AVOIDED_S)
        before = self.before if now_s - self.since_s < AVOIDED_S else ()
        return replace(self, before=before, ends=ends)

    def without_any(self, why: str) -> Avoidance:
        """With all nodes taken from now on; the first reason stays."""
        return replace(self, lifted=self.lifted or why)


class FailureTracker:
    """The memory of a pool's host for jobs that came to nothing.

    It begins with nodes to exclude, or with why jobs cannot be kept off any node, for the user.

    Attributes:
        failures: Jobs that came to nothing lately.
        avoidance: Nodes that are to blame.
        last_end: How the last such job ended, with the last words of its log.
        ended: The last such jobs, the newest last.
        failure: Why the pool can have no nodes; None as long as it can.
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

        Why, and the last words of its log, are for the user.
        """
        now_s = time.monotonic()
        self.last_end = f"{why}\n{words}" if words else why
        is_common = self._is_common(job, words)
        if job.job_status.state is not JobState.PREEMPTED:  # its turn comes again in the queue
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
        """Whether a job failed as one did on another node: no node is at fault, and none will do.

        Where nodes have come, those that do not are bad all the same.
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
            logger.warning("Not doing without %s: %s. %s", node, self.avoidance.lifted, why)
            return
        logger.warning("Doing without %s: %s", node, self.avoidance.avoided[-1].why)
        self.failures = self.failures.after_blame()

    def record_presence(self, job: PoolJob, now_s: float) -> None:
        """A node is there: after a while that ends the doubts."""
        if job.joined_s is not None:
            self._have_joined = True
            self.failures = self.failures.after_presence(job.asked_s, job.joined_s, now_s)

    def record_unused(self) -> None:
        """A job was cancelled before it started."""
        self.failures = self.failures.after_unused()

    def take_all_nodes(self, why: str) -> None:
        """Do without no node any more, and tell the user why."""
        if self.avoidance.nodes:
            logger.warning("Taking all nodes again: %s", why)
            self.avoidance = self.avoidance.without_any(why)

    def forgive(self, now_s: float) -> None:
        """Take nodes again that the pool has done without for long enough."""
        known, self.avoidance = self.avoidance.nodes, self.avoidance.at(now_s)
        back = [node for node in known if node not in self.avoidance.nodes]
        if back:
            logger.warning("Taking %s again after %g s", ", ".join(back), AVOIDED_S)

    def find_stuck(self, jobs: Iterable[PoolJob], now_s: float) -> list[PoolJob]:
        """Jobs that get no node but those it does without, since all others are down or drained.

        They are to be cancelled: after a while the pool takes all nodes from then on.
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
        """Whether another job may start in place of one that waits for what waiting does not bring.

        It may where the pool did without nodes, and takes all from now on; else it is given up.
        """
        if job.request.exclude:
            self.take_all_nodes(why)
            return True
        self.refuse(JobRefusedError(why, "Correct the role's `batch` settings in the site."))
        return False

    def fail_if_exhausted(self) -> None:
        """Give a pool without nodes up, if too much went wrong."""
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
            what = f"{num_failed} jobs in a row came to nothing; last: {self.last_end}"
            self.refuse(
                LeaseError(what, "The logs of its jobs are in `jobs` of the lease's folder.")
            )

    def refuse(self, error: HeadraceError) -> None:
        """Give the pool up: trying its jobs again is no use."""
        self._fail(error, FailureClass.USER_ERROR)

    def _fail(self, error: HeadraceError, failure_class: FailureClass) -> None:
        logger.error("Giving the pool up: %s", error)
        self.failure = error
        self.view = JobView(is_ended=True, why=error.what, failure_class=failure_class)
