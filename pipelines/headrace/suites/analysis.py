"""Analysis of a suite's trials: the best, the front, means, importance of keys; pure.

Optuna computes the importance.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import warnings
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING

from pydantic import JsonValue

from headrace.ledger.database import grouped
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.record import Figures
from headrace.states import StepState
from headrace.suites.names import written
from headrace.suites.records import FOLD

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

LEAST_FOR_IMPORTANCE = 10
"""Least number of trials for the importance of keys."""

REPEATS = ("seed", FOLD)
"""Keys in which trials of one point differ."""

INTERVAL = "values, or 95 % of the mean"
"""Title of `interval_words`."""

_LEAST_FOR_INTERVAL = 10
_BOOTSTRAP = {"method": "percentile", "n_resamples": 1000, "batch": 100, "random_state": 0}
_MOST_VALUES = 20
_FEW_VALUES = 5
_MANY = 100
_MOST_FOR_FANOVA = 500
_MOST_IN_STUDY = 2000
_LOG_FROM = 100.0


class Spread(Figures):
    """Statistics of values."""

    count: int
    mean: float
    std: float | None = None
    """Of the sample (divided by `count - 1`); null for one value."""
    values: tuple[float, ...] = ()
    """The values in order, if they are too few for an interval."""
    low: float | None = None
    """Lower bound of the 95 % bootstrap interval of the mean, within the values; null for few."""
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
    """Number of its trials without a value: not ended yet, failed, or pruned."""
    folds: dict[int, Spread] = {}
    """The first objective by fold, over seeds; empty without a cross-validation."""


class Marginal(Figures):
    """Trials with one value or a range of values of a key; other keys may differ."""

    value: JsonValue
    """The value; of a range the middle one."""
    between: tuple[float, float] | None = None
    """The least and the greatest value of a range; null for one value."""
    spread: Spread
    of_best: tuple[int, int] | None = None
    """Of a range: number of trials in it of the best quarter, and size of that quarter."""


class Importance(Figures):
    """Share of each key in the variance of the first objective."""

    shares: dict[str, float] = {}
    """By key, the most important first; their sum is 1."""
    why_not: str = ""
    """Why it is unknown."""


class Results(Figures):
    """Analysis of the ended trials of a suite."""

    objectives: tuple[Objective, ...]
    best: int | None = None
    """Number of the best trial; null with several objectives, none that ended, or folds."""
    front: tuple[int, ...] = ()
    """Numbers of the trials that no other trial beats in all objectives; only with several
    objectives and without folds."""
    points: tuple[PointResult, ...] = ()
    """Points, the best mean first; points with missing trials come last."""
    marginals: dict[str, tuple[Marginal, ...]] = {}
    """By key that varies except seed and fold, in order of its values."""


def results_of(rows: Sequence[TrialRecord], objectives: Sequence[Objective]) -> Results:
    """Return the analysis of trials."""
    ended = finished(rows)
    return Results(
        objectives=tuple(objectives),
        best=best(ended, objectives),
        front=front(ended, objectives),
        points=points(rows, objectives),
        marginals=marginals(ended, objectives),
    )


def spread_words(found: Spread | None, digits: int = 4) -> str:
    """Return mean and deviation: `0.123 ± 0.004`."""
    if found is None:
        return ""
    return f"{found.mean:.{digits}g}" + ("" if found.std is None else f" ± {found.std:.2g}")


def interval_words(found: Spread | None, digits: int = 4) -> str:
    """Return the interval of the mean, `0.119 to 0.127`; of few values all, empty for one."""
    if found is None or found.low is None or found.high is None:
        values = found.values if found is not None and found.count > 1 else ()
        return ", ".join(f"{value:.{digits}g}" for value in values)
    return f"{found.low:.{digits}g} to {found.high:.{digits}g}"


def finished(rows: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the succeeded trials that have all objectives, as numbers."""
    return [
        row
        for row in rows
        if row.state is StepState.SUCCEEDED
        and not row.pruned
        and row.objective is not None
        and all(math.isfinite(value) for value in row.objectives)
    ]


def varying(rows: Iterable[TrialRecord]) -> tuple[str, ...]:
    """Return the keys whose values differ between trials, by first appearance."""
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row.values)
    return tuple(key for key in keys if len({written(row.values.get(key)) for row in rows}) > 1)


def varied(rows: Iterable[TrialRecord]) -> list[str]:
    """Return the keys whose values differ between points: seeds and folds only repeat them."""
    return [key for key in varying(rows) if key not in REPEATS]


def spread(values: Sequence[float]) -> Spread:
    """Return mean and deviation of at least one value, and their interval from ten values on.

    Of fewer values the bootstrap is too narrow: https://doi.org/10.1080/00031305.2015.1089789, 4.1.
    """
    mean, count = statistics.fmean(values), len(values)
    std = statistics.stdev(values, mean) if count > 1 else None
    if count < _LEAST_FOR_INTERVAL:
        return Spread(count=count, mean=mean, std=std, values=tuple(sorted(values)))
    import numpy as np
    from scipy.stats import bootstrap

    low, high = bootstrap((np.array(values),), np.mean, **_BOOTSTRAP).confidence_interval
    return Spread(count=count, mean=mean, std=std, low=float(low), high=float(high))


def are_folds(rows: Iterable[TrialRecord]) -> bool:
    """Whether trials are folds of a cross-validation, which have no best trial."""
    return any(FOLD in row.values for row in rows)


def best(ended: Sequence[TrialRecord], objectives: Sequence[Objective]) -> int | None:
    """Return the number of the best trial; None with several objectives, no trial, or folds."""
    if len(objectives) != 1 or are_folds(ended):
        return None
    return next((row.number for row in ranked(ended, objectives)), None)


def ranked(rows: Iterable[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return trials by the first objective, the best first; those without a value come last."""
    sign = _sign(objectives[0]) if objectives else 1

    def rank(row: TrialRecord) -> tuple[bool, bool, float, int]:
        return row.objective is None, row.pruned, sign * (row.objective or 0.0), row.number

    return sorted(rows, key=rank)


def front(ended: Sequence[TrialRecord], objectives: Sequence[Objective]) -> tuple[int, ...]:
    """Return the numbers of the trials on the Pareto front."""
    if len(objectives) < 2 or are_folds(ended):
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


def points(
    rows: Iterable[TrialRecord], objectives: Sequence[Objective], limit: int | None = None
) -> tuple[PointResult, ...]:
    """Return trials by point, the best mean of the first objective first, at most `limit`."""
    by_group = grouped((row.group, row) for row in rows)
    sign = _sign(objectives[0]) if objectives else 1

    def rank(group: int) -> tuple[bool, float, int]:
        values = [_first(row) for row in finished(by_group[group])]
        mean = sign * statistics.fmean(values) if values else math.inf
        return len(values) < len(by_group[group]), mean, group

    return tuple(_point(group, by_group[group]) for group in sorted(by_group, key=rank)[:limit])


def marginals(
    ended: Sequence[TrialRecord], objectives: Sequence[Objective] = ()
) -> dict[str, tuple[Marginal, ...]]:
    """Return the first objective by the values of each key that varies, except seed and fold.

    Many different numbers of a key are grouped to ranges of equally many trials.
    """
    found: dict[str, tuple[Marginal, ...]] = {}
    best_quarter = ranked(ended, objectives)[: math.ceil(len(ended) / 4)] if objectives else ()
    top = {row.number for row in best_quarter}
    for key in varied(ended):
        rows = [row for row in ended if key in row.values]
        by_value = grouped((written(row.values[key]), _first(row)) for row in rows)
        numbers = numbers_of([row.values[key] for row in rows])
        most = min(_MOST_VALUES, max(_FEW_VALUES, len(rows) // 2))
        if len(by_value) > most and numbers:
            ordered = sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])
            found[key] = _in_parts(ordered, top)
            continue
        marginals = [
            Marginal(value=json.loads(text), spread=spread(values))
            for text, values in by_value.items()
        ]
        found[key] = tuple(sorted(marginals, key=lambda each: _order(each.value)))
    return found


def numbers_of(values: Sequence[JsonValue]) -> list[float]:
    """Return all values if they are finite numbers; otherwise none."""
    found = [
        float(value)
        for value in values
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
    return found if len(found) == len(values) else []


def range_words(group: Marginal) -> str:
    """Return the range of grouped values, and how many of the best trials have one."""
    ends = " to ".join(f"{end:.4g}" for end in group.between or ())
    return ends if group.of_best is None else "{}, {} of the best {}".format(ends, *group.of_best)


def importance_of(rows: Iterable[TrialRecord], objectives: Sequence[Objective] = ()) -> Importance:
    """Return the importance of keys for the first objective, by the ended trials.

    Source: fANOVA of Optuna (Hutter et al. 2014), for many trials PED-ANOVA (Watanabe et al. 2023);
    of more than 2,000 trials a fixed random sample.
    """
    ended = finished(rows)
    if len(ended) > _MOST_IN_STUDY:
        ended = random.Random(0).sample(ended, _MOST_IN_STUDY)
    keys = [key for key in varied(ended) if all(key in row.values for row in ended)]
    if len(ended) < LEAST_FOR_IMPORTANCE:
        return Importance(why_not=f"it needs {LEAST_FOR_IMPORTANCE} ended trials, not {len(ended)}")
    if len(keys) < 2:
        return Importance(why_not="it needs two keys that vary")
    if len({_first(row) for row in ended}) == 1:
        return Importance(why_not="all trials gave the same")
    from optuna.exceptions import ExperimentalWarning
    from optuna.importance import (
        FanovaImportanceEvaluator,
        PedAnovaImportanceEvaluator,
        get_param_importances,
    )

    study = study_of(ended, [objectives[0].mode if objectives else "min"], keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        is_small = len(ended) <= _MOST_FOR_FANOVA
        judge = FanovaImportanceEvaluator(seed=0) if is_small else PedAnovaImportanceEvaluator()
        return Importance(shares=dict(get_param_importances(study, evaluator=judge)))


def study_of(
    ended: Sequence[TrialRecord],
    modes: Sequence[str],
    keys: Sequence[str],
    log_keys: Sequence[str] = (),
) -> Study:
    """Return trials as a study of Optuna, in the given order.

    Args:
        ended: Trials that have all objectives.
        modes: `min` or `max` of the first objectives; the others are left out.
        keys: Keys that count; a trial may lack some.
        log_keys: Those of them that lie on a logarithmic scale, whatever their values.
    """
    import optuna
    from optuna.distributions import FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {
        key: _distribution([row.values[key] for row in ended if key in row.values], key in log_keys)
        for key in keys
    }
    study = optuna.create_study(
        directions=["minimize" if m == "min" else "maximize" for m in modes]
    )
    for row in ended:
        params = {
            key: float(row.values[key])
            if isinstance(kinds[key], FloatDistribution)
            else _choice(row.values[key])
            for key in keys
            if key in row.values
        }
        trial = optuna.trial.create_trial(
            params=params,
            distributions={key: kinds[key] for key in params},
            values=[_first(row)] if len(modes) == 1 else list(row.objectives[: len(modes)]),
        )
        study.add_trial(trial)
    return study


def _distribution(values: Sequence[JsonValue], is_log: bool) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if numbers := numbers_of(values):
        low, high = min(numbers), max(numbers)
        is_log = low > 0 and (is_log or high / low >= _LOG_FROM)
        return FloatDistribution(low, high, log=is_log)
    by_text = {written(value): _choice(value) for value in values}
    return CategoricalDistribution([by_text[text] for text in sorted(by_text)])


def _choice(value: JsonValue) -> str:
    return value if isinstance(value, str) else written(value)


def _in_parts(pairs: Sequence[tuple[float, TrialRecord]], top: Set[int]) -> tuple[Marginal, ...]:
    """Return trials in groups of one size, in order of their values of a key."""
    count = 10 if len(pairs) >= _MANY else 4
    ends = [round(part * len(pairs) / count) for part in range(count + 1)]
    total = sum(row.number in top for _, row in pairs)
    parts = [pairs[begin:end] for begin, end in itertools.pairwise(ends)]
    return tuple(
        Marginal(
            value=part[len(part) // 2][0],
            between=(part[0][0], part[-1][0]),
            spread=spread([_first(row) for _, row in part]),
            of_best=(sum(row.number in top for _, row in part), total) if top else None,
        )
        for part in parts
        if part
    )


def _point(group: int, rows: Sequence[TrialRecord]) -> PointResult:
    ended = finished(rows)
    values = {key: value for key, value in rows[0].values.items() if key not in REPEATS}
    in_folds = [row for row in ended if isinstance(row.values.get(FOLD), int)]
    folds = grouped((int(row.values[FOLD]), _first(row)) for row in in_folds)
    return PointResult(
        group=group,
        values=values,
        numbers=tuple(row.number for row in rows),
        spread=spread([_first(row) for row in ended]) if ended else None,
        missing=len(rows) - len(ended),
        folds={fold: spread(folds[fold]) for fold in sorted(folds)},
    )


def _order(value: JsonValue) -> tuple[bool, float, str]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, written(value)  # type: ignore[arg-type]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _first(row: TrialRecord) -> float:
    return math.nan if row.objective is None else row.objective


def _sign(objective: Objective) -> int:
    return 1 if objective.mode == "min" else -1
