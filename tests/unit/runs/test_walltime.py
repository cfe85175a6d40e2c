"""The time limit of a lease, out of what its steps are expected to take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clusters.lease_records import Walltime
from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.runs.walltime import (
    FLOOR_S,
    Most,
    Past,
    StepTime,
    Work,
    choose,
    expected,
    rounded_up,
)

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


GANG = Role(backend="slurm", kind="gang", nodes=2, ranks_per_node=2)
POOL = Role(backend="slurm", nodes=4, threads_per_node=2)
EPOCHS = 4


def recipe(*overrides: str) -> Recipe:
    return load_recipe("digits", (f"trainer.max_epochs={EPOCHS}", *overrides))


def past(kind: str = "train", *overrides: str, **changes: Any) -> Past:
    """A run of four epochs of ten steps, in 100 s, on four ranks."""
    trained = {"steps": 40.0, "total_steps": 40.0} if kind == "train" else {}
    values: dict[str, Any] = {"kind": kind, "slots": 4, "seconds": 100.0, **trained, **changes}
    return Past(recipe=recipe(*overrides), **values)


def seconds(
    kind: str, *pasts: Past, overrides: tuple[str, ...] = (), role: Role = GANG, **work: float
) -> float | None:
    return expected(kind, kind, Work(recipe=recipe(*overrides), role=role, **work), pasts).seconds


@pytest.mark.parametrize(
    ("overrides", "work", "wanted"),
    [
        ((), {}, 100.0),
        (("seed=5",), {}, 100.0),
        (("model.learning_rate=0.1",), {}, 100.0),
        (("trainer.max_epochs=8",), {}, 200.0),
        (("trainer.max_epochs=1",), {}, 25.0),
        (("data.global_batch_size=128",), {}, 100.0),  # as many samples
        (("trainer.max_steps=20",), {}, 50.0),
        (("trainer.max_steps=4000",), {}, 100.0),
        ((), {"kept_steps": 30.0}, 25.0),
        ((), {"kept_steps": 50.0}, 0.0),
        (("trainer.max_epochs=8",), {"kept_steps": 30.0, "total_steps": 50.0}, 50.0),
        (("model._target_=torch.nn.Linear",), {}, None),
        (("dataset.name=other",), {}, None),
    ],
)
def test_training_is_scaled_to_what_is_left_to_do(
    overrides: tuple[str, ...], work: dict[str, float], wanted: float | None
) -> None:
    assert seconds("train", past(), overrides=overrides, **work) == wanted


def test_samples_of_an_epoch_are_taken_from_the_recipe_where_it_says_them() -> None:
    batch = recipe().data.global_batch_size
    overrides = ("data.sampling=balanced", f"data.samples_per_epoch={5 * batch}")
    assert seconds("train", past(), overrides=overrides) == 50.0
    # a run that went over a part of the split does not tell how large the split is
    part = past("train", *overrides)
    assert seconds("train", part) is None
    assert seconds("train", part, total_steps=80.0) == 200.0


def test_the_slowest_of_the_newest_three_counts() -> None:
    times = (50.0, 70.0, 60.0, 900.0)
    pasts = [past("stage", seconds=each) for each in times]
    assert seconds("stage", *pasts) == 70.0
    assert seconds("stage", *pasts[:1]) == 50.0
    assert seconds("stage") is None
    assert seconds("train", *pasts) is None


def test_fewer_ranks_take_longer_and_more_are_not_counted_on() -> None:
    assert seconds("train", past(slots=8)) == 200.0
    assert seconds("train", past(slots=2)) == 100.0
    assert seconds("pack", past("pack", slots=16), role=POOL) == 200.0
    script = ("model=null", "train.script=a.py", "evaluate=null")
    packed = past("pack", *script, slots=8)  # packing does not care for the model
    assert seconds("pack", packed, role=POOL) == 100.0


def test_a_script_takes_as_long_as_before() -> None:
    script = ("model=null", "train.script=a.py", "evaluate=null")
    before = past("train", *script, steps=0.0, total_steps=None)
    assert seconds("train", before, overrides=(*script, "trainer.max_epochs=9")) == 100.0
    assert seconds("train", before, overrides=(*script, "train.args=[--long]")) is None
    assert seconds("train", before) is None
