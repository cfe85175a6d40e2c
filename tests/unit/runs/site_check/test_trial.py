"""What a trial of a role tells of each of its nodes, and of the clock."""

from __future__ import annotations

import pytest

from headrace.clusters.preflight import Check, NodeReport
from headrace.runs.site_check import trial


def test_each_node_is_told_with_what_was_looked_at_or_is_wrong() -> None:
    good = Check(name="locks", problem="", seconds=0.25)
    bad = Check(name="GPUs", problem="1 of 2", seconds=1.0)
    reports = tuple(
        NodeReport(node=f"n{index}", index=index, checks=checks)
        for index, checks in enumerate([(good,), (good, bad)])
    )
    assert [(each.grade, each.subject, each.seen) for each in trial._nodes(reports)] == [
        ("ok", "n0", "locks 0.2 s"),
        ("fail", "n1", "GPUs: 1 of 2"),
    ]


@pytest.mark.parametrize(("skew_s", "grade"), [(0.0, "ok"), (-60.0, "warn"), (60.0, "warn")])
def test_clocks_that_differ_are_warned_of(skew_s: float, grade: str) -> None:
    assert trial._clock(skew_s).grade == grade
