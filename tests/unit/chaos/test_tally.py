from __future__ import annotations

from headrace_chaos.disturbance import Hit
from headrace_chaos.outcome import Outcome, tally, total
from headrace_chaos.trials import draw


def outcome(number: int, phase: str, role: str, **changes: object) -> Outcome:
    values: dict[str, object] = {
        "trial": draw(0, number, 8.0).model_copy(update={"signal": "kill -9"}),
        "hit": Hit(phase=phase, role=role, process=f"{role} 1", after_s=1.0),
        "commands": ("headrace run: 0",),
        "seconds": float(number),
    }
    return Outcome.model_validate(values | changes)


OUTCOMES = [
    outcome(1, "train", "rank"),
    outcome(2, "train", "rank", wrong=("weights: a, not b",)),
    outcome(9, "train", "rank", left=("file x",)),
    outcome(4, "train", "rank", hung="waited", left=("rank 1",)),
    outcome(5, "pack", "command", commands=("headrace run: -9", "headrace resume: 0")),
    outcome(6, "stage", "host", hit=None),
]


def test_rows_count_what_happened():
    first, second = tally(OUTCOMES)
    assert (first.phase, first.role, first.signal) == ("pack", "command", "kill -9")
    assert (first.num_trials, first.num_well, first.num_resumed) == (1, 1, 1)
    assert (second.phase, second.role) == ("train", "rank")
    assert (second.num_trials, second.num_well, second.num_resumed) == (4, 1, 0)
    assert (second.num_wrong, second.num_hung, second.num_left) == (1, 1, 1)
    assert second.median_s == 3.0


def test_the_total_leaves_out_what_was_not_disturbed():
    row = total(OUTCOMES)
    assert (row.num_trials, row.num_well, row.median_s) == (5, 2, 4.0)
    assert total([]).num_trials == 0
