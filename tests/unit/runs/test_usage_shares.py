"""Who pays for which part of a lease's machines."""

from __future__ import annotations

import itertools
import random

import pytest

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.runs.usage_shares import Share, Span, figures, parts, rest, whole
from headrace.states import StepState


def _span(begin: float, end: float, usd: float | None = 3600.0) -> Span:
    """By default a dollar a second."""
    return Span(begin=begin, end=end, usd_per_hour=usd)


def test_an_attempt_takes_all_machines_and_attempts_at_once_share_them():
    machines = [_span(0, 100), _span(50, 200)]
    first, second, third = parts(machines, [_span(10, 60), _span(40, 60), _span(150, 300)])
    assert (first.node_s, first.usd) == (30 + 5 + 10, 45)
    assert (second.node_s, second.usd) == (5 + 10, 15)
    assert (third.node_s, third.usd) == (50, 50)


def test_what_has_no_known_price_is_not_known():
    """pains 37: never 0."""
    found = parts([_span(0, 10), _span(20, 30, usd=None)], [_span(0, 10), _span(5, 25)])
    assert [each.usd for each in found] == [7.5, None]
    assert [each.node_s for each in found] == [7.5, 7.5]
    assert parts([], [_span(0, 10)]) == [Share(node_s=0.0, usd=None)]
    assert whole([_span(0, 10), _span(0, 10, usd=None)], [10, 10]).usd is None
    assert rest(Share(node_s=9, usd=None), [Share(node_s=2, usd=1)]) == Share(node_s=7, usd=None)
    row = figures(Share(node_s=5, usd=None), 5, AttemptUsage(staging_s=1), StepState.SUCCEEDED)
    assert (row["usd_idle"], row["usd_staging"], row["idle_s"]) == (None, None, 4)


def test_no_part_is_lost_or_counted_twice():
    draw = random.Random(3)

    def spans(count: int) -> list[Span]:
        begins = [draw.uniform(0, 100) for _ in range(count)]
        return [_span(each, each + draw.uniform(0, 50)) for each in begins]

    for _ in range(50):
        machines, attempts = spans(draw.randrange(1, 6)), spans(draw.randrange(1, 5))
        took = sum(each.node_s for each in parts(machines, attempts))
        covered = parts(machines, [_span(-1, 200)])[0].node_s
        assert covered == pytest.approx(sum(each.end - each.begin for each in machines))
        assert took <= covered + 1e-9
        edges = sorted({at for each in (*machines, *attempts) for at in (each.begin, each.end)})
        wanted = 0.0
        for begin, end in itertools.pairwise(edges):
            middle = (begin + end) / 2
            if any(each.begin < middle < each.end for each in attempts):
                here = sum(each.begin < middle < each.end for each in machines)
                wanted += here * (end - begin)
        assert took == pytest.approx(wanted)


_REPORTED = AttemptUsage(start_s=10, staging_s=20, train_s=50, evaluate_s=10)
_LATE = AttemptUsage(staging_s=500, train_s=500)  # of a clock that was set


@pytest.mark.parametrize(
    ("usage", "state", "usd", "seconds"),
    [
        (_REPORTED, StepState.SUCCEEDED, (40, 20, 0), (20, 0)),
        (_REPORTED, StepState.RUNNING, (40, 20, 0), (20, 0)),
        (_REPORTED, StepState.LOST, (0, 0, 200), (0, 200)),
        (AttemptUsage(), StepState.SUCCEEDED, (0, 0, 0), (0, 0)),
        (_LATE, StepState.SUCCEEDED, (200, 0, 0), (0, 0)),
    ],
)
def test_the_money_of_an_attempt_is_split_by_where_its_time_went(
    usage: AttemptUsage, state: StepState, usd: tuple[int, ...], seconds: tuple[int, ...]
):
    found = figures(Share(node_s=200, usd=200), 100, usage, state)
    assert tuple(found[f"usd_{name}"] for name in ("staging", "idle", "failed")) == usd
    assert (found["idle_s"], found["failed_s"]) == seconds
