"""What becomes of an event that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.steps.context import append_event


def test_a_full_disk_costs_the_event_and_not_the_step(caplog: pytest.LogCaptureFixture) -> None:
    append_event(Path("/dev/full"), "step_started")
    assert "step_started is not recorded: [Errno 28]" in caplog.text


def test_any_other_error_is_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        append_event(Path("/proc/self/oom_score_adj"), "step_started")
