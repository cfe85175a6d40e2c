"""Which nodes a pool does without, and when it stops that."""

from __future__ import annotations

import pytest

from headrace.batch.jobs import JobState
from headrace.leases.failure_tracker import AVOIDED_S, MAX_AVOIDED, Avoidance, is_nodes_fault
from headrace.leases.scaling import SETTLED_S


@pytest.mark.parametrize(
    ("state", "here_s", "wanted"),
    [
        (JobState.FAILED, None, True),  # its worker never joined
        (JobState.FAILED, 1.0, True),
        (JobState.FAILED, SETTLED_S + 1, False),
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
