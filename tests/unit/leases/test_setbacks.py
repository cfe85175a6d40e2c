"""What the host of a pool concludes from jobs that came to nothing."""

from __future__ import annotations

import time

import pytest

from headrace.batch.jobs import JobState
from headrace.batch.slurm import parse_squeue
from headrace.errors import JobRefusedError
from headrace.leases.avoidance import AVOIDED_S
from headrace.leases.jobqueue import PoolJob
from headrace.leases.scaling import MOST_STRIKES
from headrace.leases.setbacks import Setbacks
from headrace.states import FailureClass
from support.pool_nodes import pool_job


def test_a_bad_node_costs_a_pool_no_hope_but_many_do():
    """pains 20, 34: the queue gives the same bad node again and again; the next one is good."""
    setbacks = Setbacks(())
    setbacks.strike(_ended("a"), "failed")
    assert setbacks.avoidance.nodes == ()
    setbacks.strike(_ended("a"), "failed")
    assert setbacks.avoidance.nodes == ("a",)
    assert setbacks.faults.strikes == 1
    for node in ("b", "b", "c"):  # never more than a few jobs, however many nodes are tried
        setbacks.lose_hope()
        assert setbacks.failure is None
        setbacks.strike(_ended(node), "failed", "no such module")
    setbacks.lose_hope()
    assert "5 jobs in a row came to nothing; last: failed\nno such" in str(setbacks.failure)
    assert setbacks.avoidance.nodes == ()
    assert setbacks.avoidance.lifted == "jobs fail on other nodes, too"
    assert [each.host for each in setbacks.ended] == ["a", "a", "b", "b", "c"]


_MISSING = "slurmstepd-{0}: error: execve(): /nope/python: No such file or directory"


def test_what_is_missing_on_a_second_node_is_no_nodes_fault():
    """pains 20, 38: a container or interpreter that is not there; nothing else is tried."""
    setbacks = Setbacks(())
    setbacks.strike(_ended("a"), "failed", _MISSING.format("a"))
    setbacks.strike(_ended("a"), "failed", _MISSING.format("a"))
    assert setbacks.failure is None
    setbacks.strike(_ended("b"), "failed", _MISSING.format("b"))
    assert setbacks.view is not None
    assert setbacks.view.failure_class is FailureClass.USER_ERROR
    assert setbacks.view.why.startswith("execve(): /nope/python: No such file or directory\n")
    assert "on 2 nodes; none is at fault" in setbacks.view.why
    assert "b" not in setbacks.avoidance.blamed


def test_what_is_missing_on_some_nodes_only_is_their_fault():
    setbacks = Setbacks(())
    here = _ended("c", JobState.RUNNING)
    here.joined_s = time.monotonic()
    setbacks.see(here, time.monotonic())
    for node in ("a", "a", "b"):
        setbacks.strike(_ended(node), "failed", _MISSING.format(node))
    assert setbacks.failure is None
    assert setbacks.avoidance.nodes == ("a",)


def test_where_nodes_cannot_be_left_out_the_bad_one_is_named(caplog: pytest.LogCaptureFixture):
    """And nothing is forgiven: the next job may get it, too."""
    setbacks = Setbacks((), "PBS cannot leave nodes out")
    for _ in range(MOST_STRIKES):
        setbacks.strike(_ended("a"), "failed")
    assert (setbacks.avoidance.nodes, setbacks.avoidance.blamed) == ((), ("a",))
    assert "Not doing without a: PBS cannot leave nodes out. failed" in caplog.text
    assert caplog.text.count("cannot leave") == 1
    setbacks.lose_hope()
    assert "3 jobs in a row came to nothing" in str(setbacks.failure)
    assert [each.host for each in setbacks.ended] == ["a"] * MOST_STRIKES


def test_a_job_that_never_joined_while_it_ran_speaks_against_its_node():
    setbacks = Setbacks(())
    for _ in range(2):
        setbacks.strike(_ended("a", JobState.RUNNING), "started no worker within 60 s")
    assert setbacks.avoidance.nodes == ("a",)


def test_preempted_jobs_are_no_fault_but_told():
    setbacks = Setbacks(())
    for _ in range(MOST_STRIKES):
        setbacks.strike(_ended("a", JobState.PREEMPTED), "preempted")
    setbacks.lose_hope()
    assert setbacks.failure is None
    assert setbacks.avoidance.nodes == ()
    assert len(setbacks.ended) == MOST_STRIKES


def test_a_job_that_never_starts_for_want_of_bad_nodes_is_no_end():
    setbacks = Setbacks(("a", "b"))
    assert setbacks.never_start(_ended("", exclude=("a", "b")), "can never start: BadConstraints")
    assert setbacks.avoidance.nodes == ()
    assert setbacks.failure is None
    assert not setbacks.never_start(_ended(""), "can never start: PartitionTimeLimit")
    assert isinstance(setbacks.failure, JobRefusedError)
    assert setbacks.view is not None
    assert setbacks.view.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:node[2-4]",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partiti",
    ],
)
def test_a_pool_that_has_only_bad_nodes_left_takes_them(reason: str):
    """pains 34: the others are drained, and nobody knows for how long. Words of a real Slurm."""
    setbacks = Setbacks(("a",))
    member = _ended("", JobState.PENDING, exclude=("a",))
    assert setbacks.find_stuck([member], 100.0) == []
    member.take(parse_squeue("7|PENDING|N/A||Resources|x"))
    assert setbacks.find_stuck([member], 99.0) == []
    member.take(parse_squeue(f"7|PENDING|N/A||{reason}|x"))
    assert setbacks.find_stuck([member], 100.0) == []
    assert setbacks.avoidance.nodes == ("a",)
    assert setbacks.find_stuck([member], 111.0) == [member]
    assert setbacks.avoidance.nodes == ()
    assert setbacks.avoidance.lifted == f"the others are down or drained ({reason})"


def test_long_avoided_nodes_are_taken_again(caplog: pytest.LogCaptureFixture):
    setbacks = Setbacks(("a",))
    setbacks.forgive(time.monotonic())
    assert setbacks.avoidance.nodes == ("a",)
    setbacks.forgive(time.monotonic() + AVOIDED_S)
    assert setbacks.avoidance.nodes == ()
    assert "Taking a again after 3600 s" in caplog.text


def _ended(host: str, state: JobState = JobState.FAILED, exclude: tuple[str, ...] = ()) -> PoolJob:
    """A node whose job has ended before its worker joined."""
    member = pool_job(exclude)
    member.take(member.sight.model_copy(update={"state": state, "nodes": (host,) if host else ()}))
    return member
