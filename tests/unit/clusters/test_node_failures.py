"""What the host of a pool concludes from jobs that came to nothing."""

from __future__ import annotations

import time

import pytest

from headrace.batch.job_records import JobState
from headrace.batch.slurm import parse_squeue
from headrace.clusters.node_failures import AVOIDED_S, MAX_AVOIDED, Avoidance, FailureTracker
from headrace.clusters.pool_job import PoolJob, is_nodes_fault
from headrace.clusters.pool_policy import MAX_FAILURES, STABLE_S
from headrace.errors import JobRefusedError
from headrace.states import FailureClass
from support.pool_nodes import pool_job


def test_a_bad_node_costs_a_pool_no_hope_but_many_do():
    """pains 20, 34: the queue gives the same bad node again and again; the next one is good."""
    tracker = FailureTracker(())
    tracker.record_failure(_ended("a"), "failed")
    assert tracker.avoidance.nodes == ()
    tracker.record_failure(_ended("a"), "failed")
    assert tracker.avoidance.nodes == ("a",)
    assert tracker.failures.count == 1
    for node in ("b", "b", "c"):  # never more than a few jobs, however many nodes are tried
        tracker.fail_if_exhausted()
        assert tracker.failure is None
        tracker.record_failure(_ended(node), "failed", "no such module")
    tracker.fail_if_exhausted()
    assert "5 jobs in a row failed; last: failed\nno such" in str(tracker.failure)
    assert tracker.avoidance.nodes == ()
    assert tracker.avoidance.lifted == "jobs fail on other nodes, too"
    assert [each.host for each in tracker.ended] == ["a", "a", "b", "b", "c"]


_MISSING = "slurmstepd-{0}: error: execve(): /nope/python: No such file or directory"


def test_what_is_missing_on_a_second_node_is_no_nodes_fault():
    """pains 20, 38: a container or interpreter that is not there; nothing else is tried."""
    tracker = FailureTracker(())
    tracker.record_failure(_ended("a"), "failed", _MISSING.format("a"))
    tracker.record_failure(_ended("a"), "failed", _MISSING.format("a"))
    assert tracker.failure is None
    tracker.record_failure(_ended("b"), "failed", _MISSING.format("b"))
    assert tracker.view.failure_class is FailureClass.USER_ERROR
    assert tracker.view.why.startswith("execve(): /nope/python: No such file or directory\n")
    assert "on 2 nodes; none is at fault" in tracker.view.why
    assert "b" not in tracker.avoidance.blamed


def test_what_is_missing_on_some_nodes_only_is_their_fault():
    tracker = FailureTracker(())
    here = _ended("c", JobState.RUNNING)
    here.joined_s = time.monotonic()
    tracker.record_presence(here, time.monotonic())
    for node in ("a", "a", "b"):
        tracker.record_failure(_ended(node), "failed", _MISSING.format(node))
    assert tracker.failure is None
    assert tracker.avoidance.nodes == ("a",)


def test_where_nodes_cannot_be_left_out_the_bad_one_is_named(caplog: pytest.LogCaptureFixture):
    """And nothing is forgiven: the next job may get it, too."""
    tracker = FailureTracker((), "PBS cannot leave nodes out")
    for _ in range(MAX_FAILURES):
        tracker.record_failure(_ended("a"), "failed")
    assert (tracker.avoidance.nodes, tracker.avoidance.blamed) == ((), ("a",))
    assert "Not avoiding a: PBS cannot leave nodes out. failed" in caplog.text
    assert caplog.text.count("cannot leave") == 1
    tracker.fail_if_exhausted()
    assert "3 jobs in a row failed" in str(tracker.failure)
    assert [each.host for each in tracker.ended] == ["a"] * MAX_FAILURES


def test_a_job_that_never_joined_while_it_ran_speaks_against_its_node():
    tracker = FailureTracker(())
    for _ in range(2):
        tracker.record_failure(_ended("a", JobState.RUNNING), "started no worker within 60 s")
    assert tracker.avoidance.nodes == ("a",)


def test_preempted_jobs_are_no_fault_but_told():
    tracker = FailureTracker(())
    for _ in range(MAX_FAILURES):
        tracker.record_failure(_ended("a", JobState.PREEMPTED), "preempted")
    tracker.fail_if_exhausted()
    assert tracker.failure is None
    assert tracker.avoidance.nodes == ()
    assert len(tracker.ended) == MAX_FAILURES


def test_a_job_that_never_starts_for_want_of_bad_nodes_is_no_end():
    tracker = FailureTracker(("a", "b"))
    assert tracker.may_start_otherwise(
        _ended("", exclude=("a", "b")), "can never start: BadConstraints"
    )
    assert tracker.avoidance.nodes == ()
    assert tracker.failure is None
    assert not tracker.may_start_otherwise(_ended(""), "can never start: PartitionTimeLimit")
    assert isinstance(tracker.failure, JobRefusedError)
    assert tracker.view.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:node[2-4]",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partiti",
    ],
)
def test_a_pool_that_has_only_bad_nodes_left_takes_them(reason: str):
    """pains 34: the others are drained, and nobody knows for how long. Words of a real Slurm."""
    tracker = FailureTracker(("a",))
    member = _ended("", JobState.PENDING, exclude=("a",))
    assert tracker.find_stuck([member], 100.0) == []
    member.set_status(parse_squeue("7|PENDING|N/A||Resources|x"))
    assert tracker.find_stuck([member], 99.0) == []
    member.set_status(parse_squeue(f"7|PENDING|N/A||{reason}|x"))
    assert tracker.find_stuck([member], 100.0) == []
    assert tracker.avoidance.nodes == ("a",)
    assert tracker.find_stuck([member], 111.0) == [member]
    assert tracker.avoidance.nodes == ()
    assert tracker.avoidance.lifted == f"the others are down or drained ({reason})"


def test_long_avoided_nodes_are_taken_again(caplog: pytest.LogCaptureFixture):
    tracker = FailureTracker(("a",))
    tracker.forgive(time.monotonic())
    assert tracker.avoidance.nodes == ("a",)
    tracker.forgive(time.monotonic() + AVOIDED_S)
    assert tracker.avoidance.nodes == ()
    assert "Using a again after 3600 s" in caplog.text


def _ended(host: str, state: JobState = JobState.FAILED, exclude: tuple[str, ...] = ()) -> PoolJob:
    """A node whose job has ended before its worker joined."""
    member = pool_job(exclude)
    member.set_status(
        member.job_status.model_copy(update={"state": state, "nodes": (host,) if host else ()})
    )
    return member


@pytest.mark.parametrize(
    ("state", "here_s", "wanted"),
    [
        (JobState.FAILED, None, True),  # its worker never joined
        (JobState.FAILED, 1.0, True),
        (JobState.FAILED, STABLE_S + 1, False),
        (JobState.NODE_FAILED, 9999.0, True),
        (JobState.CANCELLED, None, False),
        (JobState.PREEMPTED, None, False),
        (JobState.TIMED_OUT, None, False),
        (JobState.OUT_OF_MEMORY, None, False),
        (JobState.COMPLETED, None, False),
        (JobState.UNKNOWN, None, False),
    ],
)
def test_what_speaks_against_a_node(state: JobState, here_s: float | None, wanted: bool):
    assert is_nodes_fault(state, here_s) is wanted


def test_a_node_is_avoided_after_its_second_bad_end():
    known = Avoidance(before=("old",)).after("a", "failed").after("b", "failed")
    assert known.nodes == ("old",)
    again = known.after("a", "node failed")
    assert again.nodes == ("old", "a")
    (avoided,) = again.avoided
    assert (avoided.node, avoided.why) == ("a", "2 jobs ended badly there: node failed")
    assert again.after("b", "failed").nodes == ("old", "a", "b")
    assert known.after("", "nobody knows where").after("", "again") == known


def test_a_node_is_tried_again_after_a_while():
    known = Avoidance(before=("old",), since_s=5.0)
    known = known.after("a", "failed", 100.0).after("a", "failed", 200.0)
    assert known.at(AVOIDED_S + 4.0).nodes == ("old", "a")
    assert known.at(AVOIDED_S + 199.0).nodes == ("a",)
    later = known.at(AVOIDED_S + 200.0)
    assert later.nodes == ()
    assert later.after("a", "failed", AVOIDED_S + 300.0).nodes == ()  # it begins anew


def test_only_the_newest_are_avoided():
    known = Avoidance()
    for number in range(MAX_AVOIDED + 2):
        known = known.after(f"n{number}", "failed").after(f"n{number}", "failed")
    assert known.nodes == tuple(f"n{number}" for number in range(2, MAX_AVOIDED + 2))


def test_all_nodes_are_taken_once_it_cannot_go_on_without_them():
    known = Avoidance(before=("old",)).after("a", "failed").after("a", "failed")
    lifted = known.without_any("Slurm has no others")
    assert (lifted.nodes, lifted.avoided) == ((), ())
    later = lifted.after("a", "failed").without_any("another reason")
    assert (later.nodes, later.lifted) == ((), "Slurm has no others")
