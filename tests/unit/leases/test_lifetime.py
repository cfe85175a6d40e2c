from __future__ import annotations

from typing import Any

import pytest

from headrace.leases.lifetime import Life, why_close

_QUIET = {
    "now_s": 100.0,
    "started_s": 0.0,
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
    assert why_close(Life(**{**_QUIET, **changes})) == expected
