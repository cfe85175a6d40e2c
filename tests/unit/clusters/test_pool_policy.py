"""When a pool asks for nodes, gives them back and gives up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clusters.pool_policy import (
    MAX_FAILURES,
    MAX_UNUSED,
    STABLE_S,
    Failures,
    PoolNode,
    ScalingPlan,
    Stage,
    plan,
)
from headrace.recipe.site import Role

NOW_S = 1000.0
ROLE = Role(backend="slurm", nodes=4, keep_nodes="30s")


def _node(number: int, stage: Stage, since_s: float = 0.0, **changes: bool) -> PoolNode:
    return PoolNode(number=number, stage=stage, since_s=since_s, **changes)


def _wanted(nodes: int, **changes: Any) -> dict[str, Any]:
    """What a pool of up to four nodes that has work for so many is told."""
    return {"wanted": nodes, "role": ROLE, "now_s": NOW_S, "surplus_since_s": 0.0} | changes


@pytest.mark.parametrize(
    ("nodes", "given", "wanted"),
    [
        ([], _wanted(0), ScalingPlan()),
        ([], _wanted(3), ScalingPlan(submit=3)),
        ([], _wanted(9), ScalingPlan(submit=4)),
        ([_node(0, Stage.QUEUED), _node(1, Stage.STARTING)], _wanted(3), ScalingPlan(submit=1)),
        # one that leaves is no node any more, but still a job
        (
            [_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(3)],
            _wanted(4),
            ScalingPlan(submit=1),
        ),
        ([_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(4)], _wanted(4), ScalingPlan()),
        # too many: the youngest of the queue first, then what is idle longest, never what works
        (
            [_node(0, Stage.QUEUED, 1), _node(1, Stage.QUEUED, 2), _node(2, Stage.BUSY)],
            _wanted(2),
            ScalingPlan(cancel=(1,)),
        ),
        (
            [_node(0, Stage.IDLE, 7), _node(1, Stage.IDLE, 3), _node(2, Stage.QUEUED)],
            _wanted(1),
            ScalingPlan(cancel=(2,), retire=(1,)),
        ),
        ([_node(0, Stage.BUSY), _node(1, Stage.STARTING)], _wanted(0), ScalingPlan()),
        # not at once
        ([_node(0, Stage.QUEUED)], _wanted(0, surplus_since_s=NOW_S - 1), ScalingPlan()),
        ([_node(0, Stage.IDLE, NOW_S - 1)], _wanted(0), ScalingPlan()),
        # its time is over: replaced, even when it works, but not when only it can do the work
        ([_node(0, Stage.BUSY, is_old=True)], _wanted(1), ScalingPlan(submit=1, retire=(0,))),
        ([_node(0, Stage.BUSY, is_old=True, is_bound=True)], _wanted(1), ScalingPlan()),
    ],
)
def test_moves(nodes: list[PoolNode], given: dict[str, Any], wanted: ScalingPlan):
    """pains 20: no submit-cancel loop by a demand that comes and goes."""
    assert plan(nodes, failures=Failures(), **given) == wanted


def test_jobs_that_die_are_followed_by_longer_and_longer_pauses_and_then_by_none():
    failures = Failures()
    for number in range(1, MAX_FAILURES + 1):
        assert not failures.are_too_many
        now_s = NOW_S + 10 * number
        failures = failures.after_failure(now_s - 1, now_s)
        assert (
            failures.after_failure(now_s - 2, now_s + 1) == failures
        )  # asked for before: the same fault
        pause_s = 2.0 ** (number - 1)
        assert (
            plan([], failures=failures, **_wanted(4, now_s=now_s + pause_s - 0.1)) == ScalingPlan()
        )
        again = plan([], failures=failures, **_wanted(4, now_s=now_s + pause_s))
        assert again.submit == (4 if number == 1 else 1)  # then one at a time, on trial
    on_trial = [_node(0, Stage.QUEUED)]
    assert plan(on_trial, failures=failures, **_wanted(4, now_s=NOW_S + 999)) == ScalingPlan()
    assert failures.are_too_many


def test_one_failure_is_forgiven_for_each_node_that_is_done_without():
    failures = Failures().after_failure(NOW_S, NOW_S)
    assert failures.after_blame() == failures
    again = failures.after_failure(NOW_S + 1, NOW_S + 1).after_blame()
    assert (again.count, again.num_forgiven) == (1, 1)
    assert again.after_presence(NOW_S + 2, NOW_S + 3, NOW_S + 3 + STABLE_S) == Failures()


def test_a_node_that_stays_ends_the_doubts_if_it_was_asked_for_after_them():
    failures = Failures().after_failure(NOW_S - 1, NOW_S)
    old = failures.after_presence(NOW_S - 5, NOW_S, NOW_S + 2 * STABLE_S)
    assert old.count == 1
    assert failures.after_presence(NOW_S + 1, NOW_S + 2, NOW_S + 3).count == 1
    assert failures.after_presence(NOW_S + 1, NOW_S + 2, NOW_S + 2 + STABLE_S) == Failures()


def test_jobs_that_are_cancelled_unused_again_and_again_are_a_fault_too():
    """pains 20."""
    failures = Failures()
    for _ in range(MAX_UNUSED):
        assert not failures.are_too_many
        failures = failures.after_unused()
    assert failures.are_too_many
    assert not failures.after_presence(0.0, NOW_S, NOW_S).are_too_many
