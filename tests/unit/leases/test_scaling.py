"""When a pool asks for nodes, gives them back and gives up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.leases.scaling import (
    MOST_STRIKES,
    MOST_UNUSED,
    SETTLED_S,
    Faults,
    PoolNode,
    ScalingInput,
    ScalingPlan,
    Stage,
    given_up,
    plan,
)

NOW_S = 1000.0
KEEP_S = 30.0


def _node(number: int, stage: Stage, since_s: float = 0.0, **changes: bool) -> PoolNode:
    return PoolNode(number=number, stage=stage, since_s=since_s, **changes)


def _wish(nodes: int, **changes: Any) -> ScalingInput:
    given = {"now_s": NOW_S, "most": 4, "keep_s": KEEP_S, "surplus_since_s": 0.0}
    return ScalingInput(nodes=nodes, **given | changes)


@pytest.mark.parametrize(
    ("nodes", "given", "wanted"),
    [
        ([], _wish(0), ScalingPlan()),
        ([], _wish(3), ScalingPlan(submit=3)),
        ([], _wish(9), ScalingPlan(submit=4)),
        ([_node(0, Stage.QUEUED), _node(1, Stage.STARTING)], _wish(3), ScalingPlan(submit=1)),
        # one that leaves is no node any more, but still a job
        (
            [_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(3)],
            _wish(4),
            ScalingPlan(submit=1),
        ),
        ([_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(4)], _wish(4), ScalingPlan()),
        # too many: the youngest of the queue first, then what is idle longest, never what works
        (
            [_node(0, Stage.QUEUED, 1), _node(1, Stage.QUEUED, 2), _node(2, Stage.BUSY)],
            _wish(2),
            ScalingPlan(cancel=(1,)),
        ),
        (
            [_node(0, Stage.IDLE, 7), _node(1, Stage.IDLE, 3), _node(2, Stage.QUEUED)],
            _wish(1),
            ScalingPlan(cancel=(2,), retire=(1,)),
        ),
        ([_node(0, Stage.BUSY), _node(1, Stage.STARTING)], _wish(0), ScalingPlan()),
        # not at once
        ([_node(0, Stage.QUEUED)], _wish(0, surplus_since_s=NOW_S - 1), ScalingPlan()),
        ([_node(0, Stage.IDLE, NOW_S - 1)], _wish(0), ScalingPlan()),
        # its time is over: replaced, even when it works, but not when only it can do the work
        ([_node(0, Stage.BUSY, is_old=True)], _wish(1), ScalingPlan(submit=1, retire=(0,))),
        ([_node(0, Stage.BUSY, is_old=True, is_bound=True)], _wish(1), ScalingPlan()),
    ],
)
def test_moves(nodes: list[PoolNode], given: ScalingInput, wanted: ScalingPlan):
    """pains 20: no submit-cancel loop by a demand that comes and goes."""
    assert plan(nodes, given, Faults()) == wanted


def test_jobs_that_die_are_followed_by_longer_and_longer_pauses_and_then_by_none():
    faults = Faults()
    for strike in range(1, MOST_STRIKES + 1):
        assert not faults.is_hopeless
        now_s = NOW_S + 10 * strike
        faults = faults.struck(now_s - 1, now_s)
        assert faults.struck(now_s - 2, now_s + 1) == faults  # asked for before: the same fault
        pause_s = 2.0 ** (strike - 1)
        assert plan([], _wish(4, now_s=now_s + pause_s - 0.1), faults) == ScalingPlan()
        again = plan([], _wish(4, now_s=now_s + pause_s), faults)
        assert again.submit == (4 if strike == 1 else 1)  # then one at a time, on trial
    on_trial = [_node(0, Stage.QUEUED)]
    assert plan(on_trial, _wish(4, now_s=NOW_S + 999), faults) == ScalingPlan()
    assert faults.is_hopeless


def test_one_strike_is_forgiven_for_each_node_that_is_done_without():
    faults = Faults().struck(NOW_S, NOW_S)
    assert faults.remedied() == faults
    again = faults.struck(NOW_S + 1, NOW_S + 1).remedied()
    assert (again.strikes, again.forgiven) == (1, 1)
    assert again.seen(NOW_S + 2, NOW_S + 3, NOW_S + 3 + SETTLED_S) == Faults()
    error, _ = given_up(again, "failed")
    assert error.what == "2 jobs in a row came to nothing; last: failed"


def test_a_node_that_stays_ends_the_doubts_if_it_was_asked_for_after_them():
    faults = Faults().struck(NOW_S - 1, NOW_S)
    old = faults.seen(NOW_S - 5, NOW_S, NOW_S + 2 * SETTLED_S)
    assert old.strikes == 1
    assert faults.seen(NOW_S + 1, NOW_S + 2, NOW_S + 3).strikes == 1
    assert faults.seen(NOW_S + 1, NOW_S + 2, NOW_S + 2 + SETTLED_S) == Faults()


def test_jobs_that_are_cancelled_unused_again_and_again_are_a_fault_too():
    """pains 20."""
    faults = Faults()
    for _ in range(MOST_UNUSED):
        assert not faults.is_hopeless
        faults = faults.wasted()
    assert faults.is_hopeless
    assert not faults.seen(0.0, NOW_S, NOW_S).is_hopeless
