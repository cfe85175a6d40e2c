"""What went wrong with the jobs of a pool, and what its host concludes from that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from headrace.batch.jobs import JobState, JobView
from headrace.errors import HeadraceError, JobRefusedError, LeaseError
from headrace.leases.avoidance import AVOIDED_S, Avoidance
from headrace.leases.jobqueue import PoolJob
from headrace.leases.records import EndedJob
from headrace.leases.scaling import Faults, given_up
from headrace.leases.symptoms import most_common, telling_lines
from headrace.states import FailureClass

logger = logging.getLogger(__name__)

_MOST_ENDED = 20
_STUCK_S = 10.0
_PLACES = 2
_MEND = "Correct `batch` (container, python, modules, prologue) or the tiers of the role."


class FailureTracker:
    """The memory of a pool's host for jobs that came to nothing.

    Args:
        exclude: Nodes that earlier leases of the run have failed on.
        powerless: Why its jobs cannot be kept off any node, for the user; empty when they can.
    """

    def __init__(self, exclude: tuple[str, ...], powerless: str = "") -> None:
        self.faults = Faults()
        """Jobs that came to nothing lately."""
        self.avoidance = Avoidance(before=exclude, since_s=time.monotonic(), lifted=powerless)
        """Nodes that are to blame."""
        self.last_end = ""
        """How the last such job ended, with the last words of its log."""
        self.ended: tuple[EndedJob, ...] = ()
        """The last such jobs, the newest last."""
        self._symptoms: dict[str, set[str]] = {}
        self._have_joined = False
        self._stuck_since_s: float | None = None
        self._failure: tuple[HeadraceError, FailureClass] | None = None

    @property
    def failure(self) -> HeadraceError | None:
        """Why the pool can have no nodes; None as long as it can."""
        return None if self._failure is None else self._failure[0]

    @property
    def view(self) -> JobView | None:
        """The same for the lease's records."""
        if self._failure is None:
            return None
        error, failure_class = self._failure
        return JobView(is_ended=True, why=error.what, failure_class=failure_class)

    def record_failure(self, member: PoolJob, why: str, words: str = "") -> None:
        """Take up that a job has ended by itself, or did not do what it should.

        Args:
            member: Its node.
            why: What happened, for the user.
            words: The last lines of its log.
        """
        now_s = time.monotonic()
        self.last_end = f"{why}\n{words}" if words else why
        is_common = self._is_common(member, words)
        if member.job_status.state is not JobState.PREEMPTED:  # its turn comes again in the queue
            self.faults = self.faults.struck(member.asked_s, now_s)
        ended = EndedJob(node=member.name, job_id=member.job_id, host=member.host, why=why)
        self.ended = (*self.ended, ended)[-_MOST_ENDED:]
        if is_common:
            return
        known = self.avoidance.blamed
        if member.speaks_against_node(now_s):
            self.avoidance = self.avoidance.after(member.host, why, now_s)
        if set(self.avoidance.blamed) - set(known):
            self._blame(member.host, why)

    def _is_common(self, member: PoolJob, words: str) -> bool:
        """Whether a job failed as one did on another node: no node is at fault, and none will do.

        Where nodes have come, those that do not are bad all the same.
        """
        symptom = most_common(telling_lines(words))
        if symptom is None or self._have_joined:
            return False
        places = self._symptoms.setdefault(symptom.words, set())
        places.add(member.host or member.job_id)
        if len(places) < _PLACES:
            return False
        what = f"{symptom.words}\n  It was the same on {len(places)} nodes; none is at fault"
        self.refuse(LeaseError(what, _MEND))
        return True

    def _blame(self, node: str, why: str) -> None:
        if self.avoidance.lifted:
            logger.warning("Not doing without %s: %s. %s", node, self.avoidance.lifted, why)
            return
        logger.warning("Doing without %s: %s", node, self.avoidance.avoided[-1].why)
        self.faults = self.faults.remedied()

    def see(self, member: PoolJob, now_s: float) -> None:
        """Take up that a node is there: after a while that ends the doubts."""
        if member.joined_s is not None:
            self._have_joined = True
            self.faults = self.faults.seen(member.asked_s, member.joined_s, now_s)

    def waste(self) -> None:
        """Take up that a job was cancelled before it started."""
        self.faults = self.faults.wasted()

    def take_all_nodes(self, why: str) -> None:
        """Do without no node any more.

        Args:
            why: For the user.
        """
        if self.avoidance.nodes:
            logger.warning("Taking all nodes again: %s", why)
            self.avoidance = self.avoidance.without_any(why)

    def forgive(self, now_s: float) -> None:
        """Take nodes again that it has done without for long enough."""
        known, self.avoidance = self.avoidance.nodes, self.avoidance.at(now_s)
        back = [node for node in known if node not in self.avoidance.nodes]
        if back:
            logger.warning("Taking %s again after %g s", ", ".join(back), AVOIDED_S)

    def find_stuck(self, members: Iterable[PoolJob], now_s: float) -> list[PoolJob]:
        """Jobs that get no node but those it does without, since all others are down or drained.

        After a while it takes all nodes from then on.

        Args:
            members: All nodes of a pool of which none is there.
            now_s: Now.

        Returns:
            Those to cancel, so that jobs follow that may get any node.
        """
        stuck = [each for each in members if each.is_kept_from_nodes]
        if not stuck:
            self._stuck_since_s = None
            return []
        self._stuck_since_s = self._stuck_since_s or now_s
        if now_s - self._stuck_since_s < _STUCK_S:
            return []
        self.take_all_nodes(f"the others are down or drained ({stuck[0].job_status.reason})")
        return stuck

    def refuse(self, error: HeadraceError) -> None:
        """Give the pool up, since the batch system does not take its jobs."""
        self._fail(error, FailureClass.USER_ERROR)

    def never_start(self, member: PoolJob, why: str) -> bool:
        """Take up that a job waits for what waiting does not bring.

        Args:
            member: Its node.
            why: What it waits for, for the user.

        Returns:
            Whether another one may start: the pool did without nodes, and takes all from now on.
        """
        if member.request.exclude:
            self.take_all_nodes(why)
            return True
        self.refuse(JobRefusedError(why, "Correct the role's `batch` settings in the site."))
        return False

    def fail_if_exhausted(self) -> None:
        """Give a pool without nodes up, if too much went wrong."""
        if self.faults.is_hopeless:
            self.take_all_nodes("jobs fail on other nodes, too")
            self._fail(*given_up(self.faults, self.last_end))

    def _fail(self, error: HeadraceError, failure_class: FailureClass) -> None:
        logger.error("Giving the pool up: %s", error)
        self._failure = error, failure_class
