from __future__ import annotations

from pathlib import Path

import pytest

from headrace.batch.submit_rate import BURST, take, tokens_after


@pytest.mark.parametrize(
    ("tokens", "passed_s", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 30.0, 1.0), (0.5, 60.0, 2.5), (1.0, 1e6, BURST), (2.0, -5.0, 2.0)],
)
def test_tokens_come_evenly_and_are_kept_up_to_a_few(
    tokens: float, passed_s: float, expected: float
):
    assert tokens_after(tokens, passed_s, per_minute=2) == expected


def test_a_burst_is_free_and_then_tokens_are_waited_for(tmp_path: Path):
    """pains 17: submits of all processes share one bucket."""
    waits = [take(tmp_path / "queue" / "submits.json", per_minute=1) for _ in range(BURST + 2)]
    assert waits[:BURST] == [0.0] * BURST
    # asking takes nothing
    assert waits[BURST:] == [pytest.approx(60.0, abs=1.0)] * 2
    assert (tmp_path / "queue").stat().st_mode & 0o077 == 0
