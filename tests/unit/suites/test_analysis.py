"""Analysis of trials, and which of them the figures of a report show."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.states import StepState
from headrace.suites import analysis
from headrace.suites.analysis import (
    best,
    finished,
    front,
    importance_of,
    interval_words,
    marginals,
    points,
    results_of,
    spread,
    varying,
)
from headrace.suites.names import short_keys
from headrace.suites.suite_report import _drawn_of

LOSS = (Objective(metric="loss"),)
ACCURACY = (Objective(metric="accuracy", mode="max"),)


def row(number: int, *objectives: float, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "run_id": "suite",
        "number": number,
        "name": f"t{number}",
        "group": number,
        "state": StepState.SUCCEEDED,
        "objective": objectives[0] if objectives else None,
        "objectives": objectives,
        "created_at": 0.0,
    }
    return TrialRecord(**{**values, **changes})


def test_the_best_trial_is_one_that_went_to_its_end_with_a_number():
    rows = [
        row(1, 0.5),
        row(2, 0.1, state=StepState.FAILED),
        row(3, 0.1, pruned=True),
        row(4, 0.3),
        row(5, math.nan),
        row(6),
    ]
    ended = finished(rows)
    assert [each.number for each in ended] == [1, 4]
    assert best(ended, LOSS) == 4
    assert best(ended, ACCURACY) == 1
    assert best([], LOSS) is None
    assert best(ended, (*LOSS, *ACCURACY)) is None


def test_few_values_are_given_themselves_and_the_interval_of_more_lies_within_them():
    told = spread([0.9, 1.0, 0.9])
    assert (told.count, told.values, told.low, told.high) == (3, (0.9, 0.9, 1.0), None, None)
    assert interval_words(told) == "0.9, 0.9, 1"
    alone = spread([3.0])
    assert (alone.mean, alone.std, interval_words(alone)) == (3.0, None, "")
    values = [1.0] * 19 + [0.0]  # by Student's t: 0.85 to 1.05
    told = spread(values)
    assert told.std == pytest.approx(0.22361, abs=1e-5)
    assert told.low is not None
    assert told.high is not None
    assert 0.8 < told.low < told.mean < told.high <= 1.0
    assert spread(values) == told
    assert (spread([0.5] * 12).low, spread([0.5] * 12).high) == (0.5, 0.5)


def test_the_front_is_that_of_the_definition():
    objectives = (Objective(metric="loss"), Objective(metric="accuracy", mode="max"))
    draw = random.Random(3)
    rows = [row(n, draw.randint(0, 9), draw.randint(0, 9)) for n in range(1, 80)]

    def beats(one: TrialRecord, other: TrialRecord) -> bool:
        a, b = one.objectives, other.objectives
        return a != b and a[0] <= b[0] and a[1] >= b[1]

    expected = [each.number for each in rows if not any(beats(other, each) for other in rows)]
    assert front(rows, objectives) == tuple(expected)
    assert front(rows, LOSS) == ()


def test_folds_and_seeds_of_a_point_are_one_result_and_points_that_lack_some_come_later():
    rows = [
        row(1, 0.2, group=1, values={"lr": 1, "seed": 1}),
        row(2, 0.4, group=1, values={"lr": 1, "seed": 2}),
        row(3, 0.1, group=3, values={"lr": 2, "seed": 1}),
        row(4, group=3, values={"lr": 2, "seed": 2}, state=StepState.FAILED),
        row(5, group=5, values={"lr": 3, "seed": 1}, state=StepState.RUNNING),
        row(6, 0.25, group=6, values={"lr": 4, "seed": 1}),
    ]
    found = points(rows, LOSS)
    assert [(each.group, each.values, each.missing) for each in found] == [
        (6, {"lr": 4}, 0),
        (1, {"lr": 1}, 0),
        (3, {"lr": 2}, 1),
        (5, {"lr": 3}, 1),
    ]
    assert found[1].spread == spread([0.2, 0.4])
    assert found[1].numbers == (1, 2)
    assert found[3].spread is None
    assert [each.group for each in points(rows, ACCURACY)] == [1, 6, 3, 5]


def test_marginal_means_are_over_all_that_differs_in_order_of_values():
    grid = itertools.product((0.1, 0.01), ("relu", "gelu"))
    rows = [
        row(n, float(n), values={"lr": lr, "act": act, "same": 1})
        for n, (lr, act) in enumerate(grid, 1)
    ]
    told = marginals(rows)
    assert varying(rows) == ("lr", "act")
    assert [(each.value, each.spread.mean) for each in told["lr"]] == [(0.01, 3.5), (0.1, 1.5)]
    assert [(each.value, each.spread.mean) for each in told["act"]] == [
        ("gelu", 3.0),
        ("relu", 2.0),
    ]
    assert list(told) == ["lr", "act"]


def test_many_different_numbers_of_a_key_are_told_in_ten_parts_of_one_size():
    rows = [row(n, float(n // 10), values={"lr": n / 1000}) for n in range(100)]
    told = marginals(rows)["lr"]
    assert [each.spread.count for each in told] == [10] * 10
    assert [each.spread.mean for each in told] == [float(part) for part in range(10)]
    assert (told[1].between, told[1].value) == ((0.01, 0.019), 0.015)
    words = [row(n, 1.0, values={"act": f"a{n}"}) for n in range(30)]
    assert len(marginals(words)["act"]) == 30


@pytest.mark.parametrize("count", [60, 700])
def test_what_matters_is_what_the_outcome_comes_from(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(analysis, "_MOST_IN_STUDY", 600)
    draw = random.Random(1)
    rows = []
    for number in range(1, count + 1):
        lr, width, act = 10 ** draw.uniform(-5, -1), draw.choice((16, 32)), draw.choice("ab")
        loss = (math.log10(lr) + 3) ** 2 + 0.01 * (width == 16)
        rows.append(row(number, loss, values={"lr": lr, "width": width, "act": act}))
    told = importance_of(rows)
    assert told.why_not == ""
    assert next(iter(told.shares)) == "lr"
    assert told.shares["lr"] > 0.7
    assert sum(told.shares.values()) == pytest.approx(1)
    assert importance_of(rows) == told


def test_why_nobody_can_say_what_matters():
    many = [row(n, float(n), values={"a": n, "b": n % 2}) for n in range(1, 20)]
    assert "needs 10 ended trials, not 9" in importance_of(many[:9]).why_not
    alone = [row(n, float(n), values={"a": n}) for n in range(1, 20)]
    assert "two keys" in importance_of(alone).why_not
    same = [row(n, 1.0, values={"a": n, "b": n % 2}) for n in range(1, 20)]
    assert "the same" in importance_of(same).why_not


def test_results_of_nothing_and_of_what_has_not_ended():
    for rows in ([], [row(1, state=StepState.QUEUED)]):
        told = results_of(rows, LOSS)
        assert (told.best, told.front, told.marginals) == (None, (), {})
    assert results_of([row(1, 0.5)], LOSS).best == 1
    assert results_of([row(1, state=StepState.SUCCEEDED)], ()).best is None


def test_keys_are_shortened_where_that_tells_them_apart():
    told = short_keys(["model.lr", "model.depth", "ema.lr", "seed"])
    assert told == {
        "model.lr": "model.lr",
        "model.depth": "depth",
        "ema.lr": "ema.lr",
        "seed": "seed",
    }


def test_folds_are_no_contest_but_a_mean_and_each_fold_by_number():
    rows = [
        row(n, value, group=1, values={"data.fold": n - 1}) for n, value in enumerate((3.0, 1.0), 1)
    ]
    for ended in (rows, rows[:1]):
        told = results_of(ended, LOSS)
        assert (told.best, told.front, told.marginals) == (None, (), {})
    (point,) = results_of(rows, LOSS).points
    assert point.spread == spread([3.0, 1.0])
    assert point.folds == {0: spread([3.0]), 1: spread([1.0])}
    both = [
        row(4 * at + 2 * fold + seed, lr + fold + seed, group=1 + 4 * at,
            values={"lr": lr, "data.fold": fold, "seed": seed})
        for at, lr in enumerate((0.5, 0.1)) for fold in (0, 1) for seed in (1, 2)
    ]  # fmt: skip
    told = results_of(both, LOSS)
    assert (told.best, list(told.marginals)) == (None, ["lr"])
    assert told.points[0].values == {"lr": 0.1}
    assert told.points[0].folds == {0: spread([1.1, 2.1]), 1: spread([2.1, 3.1])}
    assert points([row(1, 0.5, values={"lr": 1})], LOSS)[0].folds == {}


def test_a_key_with_nearly_as_many_values_as_trials_is_told_in_quarters():
    rows = [row(n, abs(n - 2.0), values={"lr": 10.0**-n, "depth": n % 3}) for n in range(12)]
    told = marginals(rows, LOSS)
    assert [each.spread.count for each in told["lr"]] == [3, 3, 3, 3]
    assert told["lr"][0].between == (1e-11, 1e-9)
    # the three best are 10^-1 to 10^-3
    assert [each.of_best for each in told["lr"]] == [(0, 3), (0, 3), (1, 3), (2, 3)]
    assert [(each.value, each.of_best) for each in told["depth"]] == [(n, None) for n in range(3)]
    few = [row(n, 1.0 * n, values={"lr": n / 10}) for n in range(5)]
    assert len(marginals(few, LOSS)["lr"]) == 5
    seeds = [row(n, 1.0 * n, values={"seed": n}) for n in range(12)]
    assert marginals(seeds, LOSS) == {}


@pytest.mark.parametrize(("mode", "best"), [("max", 2999), ("min", 0)])
def test_of_very_many_trials_the_best_are_drawn(mode, best):
    rows = [row(number, float(number)) for number in range(3000)]
    drawn = {each.number for each in _drawn_of(rows, Objective(metric="acc", mode=mode))}
    assert len(drawn) == 2000
    assert {abs(best - place) for place in range(200)} <= drawn
    assert _drawn_of(rows[:2000], Objective(metric="acc", mode=mode)) == rows[:2000]
