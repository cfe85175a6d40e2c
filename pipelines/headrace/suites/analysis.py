"""What the trials of a suite tell together: the best, the front, means, what matters; pure."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from headrace.ledger.trial_records import TrialRecord
from headrace.recipe.suite import Objective
from headrace.record import Figures
from headrace.states import StepState
from headrace.suites.names import written

REPEATS = ("seed", "data.fold")
"""Keys in which trials of one point differ."""

_CONFIDENCE = 0.95
_MOST_VALUES = 20
_PARTS = 10


class Spread(Figures):
    """Values together."""

    count: int
    mean: float
    std: float | None = None
    """Of the sample (divided by `count - 1`); null for one value."""
    low: float | None = None
    """Lower bound of the 95 % confidence interval of the mean, by Student's t; null for one."""
    high: float | None = None
    """Upper bound."""


class PointResult(Figures):
    """The trials of one point: they differ only by fold and seed."""

    group: int
    """Number of its first trial."""
    values: dict[str, JsonValue]
    """Without fold and seed."""
    numbers: tuple[int, ...]
    """All its trials."""
    spread: Spread | None = None
    """Of the first objective over the trials that have one; null without any."""
    missing: int = 0
    """Trials of it that have no value: not ended yet, failed, or pruned."""


class Marginal(Figures):
    """Trials with one value of a key, or with like values, whatever else differs."""

    value: JsonValue
    """The value; of several the middle one."""
    between: tuple[float, float] | None = None
    """The least and the greatest of several values; null for one."""
    spread: Spread


class Results(Figures):
    """What the ended trials of a suite tell."""

    objectives: tuple[Objective, ...]
    best: int | None = None
    """Number of the best trial; null with several objectives, or none that ended."""
    front: tuple[int, ...] = ()
    """Numbers of the trials that no other one beats in all objectives; with several of these."""
    points: tuple[PointResult, ...] = ()
    """Points, the best mean first; one that lacks trials comes after those that lack none."""
    marginals: dict[str, tuple[Marginal, ...]] = {}
    """By key that varies, in order of its values."""


def results_of(rows: Sequence[TrialRecord], objectives: Sequence[Objective]) -> Results:
    """All that trials tell together."""
    ended = finished(rows)
    return Results(
        objectives=tuple(objectives),
        best=best(ended, objectives),
        front=front(ended, objectives),
        points=points(rows, objectives),
        marginals=marginals(ended),
    )


def finished(rows: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Trials that went to their end and have all objectives, as numbers."""
    return [
        row
        for row in rows
        if row.state is StepState.SUCCEEDED
        and not row.pruned
        and row.objective is not None
        and all(math.isfinite(value) for value in row.objectives)
    ]


def varying(rows: Iterable[TrialRecord]) -> tuple[str, ...]:
    """Keys of which trials have different values, in order of their first appearance."""
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row.values)
    return tuple(key for key in keys if len({written(row.values.get(key)) for row in rows}) > 1)


def spread(values: Sequence[float]) -> Spread:
    """Mean, deviation and confidence interval of one value or more.

    Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2 (Student's t).
    """
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Spread(count=1, mean=mean)
    from scipy.special import stdtrit

    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(stdtrit(count - 1, (1 + _CONFIDENCE) / 2)) * std / math.sqrt(count)
    return Spread(count=count, mean=mean, std=std, low=mean - half, high=mean + half)


def best(ended: Iterable[TrialRecord], objectives: Sequence[Objective]) -> int | None:
    """Number of the best trial; None without one objective, or without a trial."""
    if len(objectives) != 1:
        return None
    sign = _sign(objectives[0])
    found = min(ended, key=lambda row: (sign * _first(row), row.number), default=None)
    return None if found is None else found.number


def front(ended: Sequence[TrialRecord], objectives: Sequence[Objective]) -> tuple[int, ...]:
    """Numbers of trials than which none is better in one objective and as good in the others."""
    if len(objectives) < 2:
        return ()
    signs = [_sign(each) for each in objectives]
    places = {
        row.number: tuple(s * v for s, v in zip(signs, row.objectives, strict=True))
        for row in ended
        if len(row.objectives) == len(signs)
    }
    kept: dict[int, tuple[float, ...]] = {}
    for number, place in sorted(places.items(), key=lambda each: each[1]):
        # whatever beats it comes before it in this order, and is itself beaten only by such
        if not any(_beats(other, place) for other in kept.values()):
            kept[number] = place
    return tuple(sorted(kept))


def points(rows: Iterable[TrialRecord], objectives: Sequence[Objective]) -> tuple[PointResult, ...]:
    """Trials by point, the best mean of the first objective first."""
    grouped: defaultdict[int, list[TrialRecord]] = defaultdict(list)
    for row in rows:
        grouped[row.group].append(row)
    found = [_point(group, each) for group, each in grouped.items()]
    sign = _sign(objectives[0]) if objectives else 1
    return tuple(sorted(found, key=lambda point: _rank(point, sign)))


def marginals(ended: Sequence[TrialRecord]) -> dict[str, tuple[Marginal, ...]]:
    """The first objective by the values of each key that varies, whatever else differs.

    Of a key with many different numbers, like ones are taken together, evenly many each.
    """
    found: dict[str, tuple[Marginal, ...]] = {}
    for key in varying(ended):
        rows = [row for row in ended if key in row.values]
        by_value: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            by_value[written(row.values[key])].append(_first(row))
        numbers = numbers_of([row.values[key] for row in rows])
        if len(by_value) > _MOST_VALUES and numbers:
            found[key] = _in_parts(sorted(zip(numbers, map(_first, rows), strict=True)))
            continue
        told = [
            Marginal(value=json.loads(text), spread=spread(values))
            for text, values in by_value.items()
        ]
        found[key] = tuple(sorted(told, key=lambda each: _order(each.value)))
    return found


def numbers_of(values: Sequence[JsonValue]) -> list[float]:
    """All values, if they are finite numbers; else none."""
    found = [
        float(value)
        for value in values
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
    return found if len(found) == len(values) else []


def _in_parts(pairs: Sequence[tuple[float, float]]) -> tuple[Marginal, ...]:
    """Values of a key and what they gave, in order of the values, in parts of one size."""
    ends = [round(part * len(pairs) / _PARTS) for part in range(_PARTS + 1)]
    parts = [pairs[begin:end] for begin, end in itertools.pairwise(ends)]
    return tuple(
        Marginal(
            value=part[len(part) // 2][0],
            between=(part[0][0], part[-1][0]),
            spread=spread([value for _, value in part]),
        )
        for part in parts
        if part
    )


def _point(group: int, rows: Sequence[TrialRecord]) -> PointResult:
    ended = finished(rows)
    values = {key: value for key, value in rows[0].values.items() if key not in REPEATS}
    return PointResult(
        group=group,
        values=values,
        numbers=tuple(row.number for row in rows),
        spread=spread([_first(row) for row in ended]) if ended else None,
        missing=len(rows) - len(ended),
    )


def _rank(point: PointResult, sign: int) -> tuple[bool, bool, float, int]:
    mean = math.inf if point.spread is None else sign * point.spread.mean
    return point.spread is None, point.missing > 0, mean, point.group


def _order(value: JsonValue) -> tuple[bool, float, str]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, written(value)  # type: ignore[arg-type]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _first(row: TrialRecord) -> float:
    return math.nan if row.objective is None else row.objective


def _sign(objective: Objective) -> int:
    return 1 if objective.mode == "min" else -1
