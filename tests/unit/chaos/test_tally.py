from __future__ import annotations

from headrace_chaos.disturbance import Hit
from headrace_chaos.outcome import Outcome, counted, tally
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


def test_rows_count_what_happened_and_leave_out_what_was_not_disturbed():
    found = tally(OUTCOMES)
    assert list(found) == [("pack", "command", "kill -9"), ("train", "rank", "kill -9")]
    first, second = ([*counted(group).values()] for group in found.values())
    assert list(counted(())) == ["trials", "well", "resumed", "wrong", "hung", "left over"]
    assert first == [1, 1, 1, 0, 0, 0]
    assert second == [4, 1, 0, 1, 1, 1]
