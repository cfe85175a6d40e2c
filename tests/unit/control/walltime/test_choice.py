"""The time limit of a lease, from what its steps are expected to take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.walltime.choice import FLOOR_S, Most, StepTime, choose, rounded_up
from headrace.leases.records import Walltime

HOUR = 3600.0
MOST = Most(seconds=48 * HOUR, whose="Slurm's longest job, 2 days")
SECONDS = st.floats(0, 1e6)
TIMES = st.lists(st.none() | SECONDS, max_size=4)


def chosen(
    *times: float | None,
    most_s: float = MOST.seconds,
    start_s: float = 0.0,
    too_short_s: float | None = None,
) -> Walltime:
    steps = [StepTime(name="step", seconds=each, num_runs=1 if each else 0) for each in times]
    return choose(steps, Most(seconds=most_s, whose="the queue's"), start_s, too_short_s)


@pytest.mark.parametrize(
    ("times", "more", "expected"),
    [
        ((10.0,), {}, FLOOR_S),
        ((), {}, FLOOR_S),
        ((1000.0, 200.0), {}, 2100.0),
        ((1000.0, 200.0), {"start_s": 1.0}, 2400.0),
        ((HOUR,), {}, 1.75 * HOUR),
        ((10 * HOUR,), {}, 16 * HOUR),
        ((100 * HOUR,), {}, MOST.seconds),
        ((None,), {}, HOUR),
        ((10.0, None), {}, HOUR),
        ((HOUR, None), {}, 1.75 * HOUR),
        ((10.0,), {"too_short_s": FLOOR_S}, 2 * FLOOR_S),
        ((10 * HOUR,), {"too_short_s": FLOOR_S}, 16 * HOUR),
        ((None,), {"too_short_s": 40 * HOUR}, MOST.seconds),
        ((None,), {"most_s": 300.0}, 300.0),
    ],
)
def test_choices(times: tuple[float | None, ...], more: dict[str, float], expected: float) -> None:
    assert chosen(*times, **more).seconds == expected


@settings(max_examples=50)
@given(TIMES, SECONDS, st.none() | SECONDS, st.floats(1, 1e6))
def test_a_choice_lies_between_floor_and_most(
    times: list[float | None], start_s: float, too_short_s: float | None, most_s: float
) -> None:
    seconds = chosen(*times, start_s=start_s, too_short_s=too_short_s, most_s=most_s).seconds
    assert min(FLOOR_S, most_s) <= seconds <= most_s


@settings(max_examples=50)
@given(st.lists(SECONDS, min_size=1, max_size=4), SECONDS, SECONDS, st.data())
def test_what_takes_longer_never_gets_less(
    times: list[float], more_s: float, start_s: float, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(times) - 1))
    longer = [each + more_s * (place == index) for place, each in enumerate(times)]
    before = chosen(*times, start_s=start_s)
    assert chosen(*longer, start_s=start_s).seconds >= before.seconds
    assert chosen(*times, start_s=start_s + more_s).seconds >= before.seconds
    assert chosen(*times, None, start_s=start_s).seconds >= before.seconds
    assert chosen(*times, start_s=start_s, too_short_s=more_s).seconds >= before.seconds


@settings(max_examples=50)
@given(st.floats(1, 1e6))
def test_rounding_never_takes_away_and_adds_an_hour_at_most(seconds: float) -> None:
    assert seconds <= rounded_up(seconds) < seconds + HOUR


def test_the_reason_names_the_steps_and_what_is_not_known() -> None:
    steps = [
        StepTime(name="stage", seconds=4.0, num_runs=2),
        StepTime(name="train", seconds=31.2, num_runs=1),
        StepTime(name="evaluate", seconds=None),
    ]
    why = choose(steps, MOST, 9.0, too_short_s=30 * HOUR).why
    assert why == (
        "stage 0:00:04, train 0:00:32, start 0:00:09 in the slowest of 2 earlier runs, times 1.5 "
        "plus 5 minutes; no earlier run tells how long evaluate will take here, for which 1:00:00 "
        "is the least; 1 day, 6:00:00 was too short for the lease before, so twice that; "
        "2 days, 12:00:00 is more than Slurm's longest job, 2 days"
    )
