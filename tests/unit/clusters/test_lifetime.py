from __future__ import annotations

from typing import Any

import pytest

from headrace.clusters.lifetime import LeaseClock, ends_at, why_close

_QUIET = {
    "now_s": 100.0,
    "ends_s": 3600.0,
    "idle_since_s": None,
    "lifetime_s": 3600.0,
    "idle_stop_s": 300.0,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"idle_since_s": 90.0}, None),
        ({"now_s": 399.9, "idle_since_s": 100.0}, None),
        ({"now_s": 400.0, "idle_since_s": 100.0}, "no step ran for 300 s"),
        ({"now_s": 3599.9}, None),
        ({"now_s": 3600.0}, "its lifetime of 3600 s is over"),
        ({"asked": "wrong data\n"}, "wrong data"),
        ({"asked": ""}, "asked to close"),
        ({"signal_name": "SIGTERM"}, "the host was ended by SIGTERM"),
        ({"lost_owner": "process 7 on here"}, "its owner, process 7 on here, has gone"),
        ({"is_removed": True}, "its folder was removed"),
        # who asked comes before what would have ended it anyway
        ({"asked": "done", "lost_owner": "x", "now_s": 1e9}, "done"),
        (
            {"lost_owner": "process 7 on here", "now_s": 1e9},
            "its owner, process 7 on here, has gone",
        ),
    ],
)
def test_why_close(changes: dict[str, Any], expected: str | None) -> None:
    """pains 18, 22: no lease lives without an owner, for ever, or for nothing."""
    assert why_close(LeaseClock(**{**_QUIET, **changes})) == expected


@pytest.mark.parametrize(
    ("lifetime_s", "job_started", "expected"),
    [
        (60.0, None, 1060.0),
        (60.0, "", 1060.0),
        # a job that has run for a while before its lease's host was there, such as for its prologue
        (60.0, "990", 990 + 60 - 10),
        (7200.0, "990", 990 + 7200 - 60),
    ],
)
def test_a_lease_ends_before_its_job_does(
    lifetime_s: float, job_started: str | None, expected: float
) -> None:
    """pains 31: by the clock, so that no signal of the batch system has to be understood."""
    assert ends_at(lifetime_s, 1000.0, job_started) == expected
