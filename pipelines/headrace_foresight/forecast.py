"""Forecasts of durations from durations of similar work, and of the end of all work; pure.

Durations are predicted by Gaussian processes in logarithms: an exponent for each number of the
recipe (linear part), a smooth bend of it (such as an overhead that does not grow with the epochs),
and noise. With few points they fall back to `EXPONENTS`, then to the mean. The strength of each
part is averaged over a grid, weighted by how well it explains the known durations: the single best
strength is too confident with few points. Source: Rasmussen & Williams, Gaussian Processes for
Machine Learning, 2006, algorithm 2.1 and section 5.2, https://gaussianprocess.org/gpml/.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from headrace.errors import shortened
from headrace.recipe.recipe import Recipe
from headrace.runs.prediction import LEVEL, Forecast
from headrace.suites.trial_order import Eta

Floats = NDArray[np.float64]
Features = Mapping[str, float | str]
"""Numbers, and words that are compared for equality, by dotted key."""

_PARTS = ("data", "model", "trainer")
_NO_WORK = (
    "checkpoint_target", "fold", "monitor", "monitor_mode", "keep_checkpoints", "loggers", "name",
    "seed",
)  # fmt: skip
"""Keys whose values do not change how long training takes."""
_NORMAL = NormalDist()
EXPONENTS = {
    "expected_s": 1.0,
    "trainer.max_epochs": 1.0,
    "trainer.max_steps": 1.0,
    "data.samples_per_epoch": 1.0,
    "samples": 1.0,
    "ranks": -1.0,
}
"""Default power with which a duration grows with a feature, without other information."""

MOST_KNOWN, AGEING = 60, 0.95
"""Number of the newest durations that count, and the weight of each relative to the next newer."""

_NOISES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_SLOPES = (0.05, 0.2, 0.8)
_BENDS = (1e-6, 0.2, 0.6)
_USUAL_NOISE, _USUAL_SLOPE = 0.15, 0.1
_REACH = 1.0
"""Distance of logarithms over which a bend has an effect."""
_FLAT = 1e4
"""Variance of the mean: nothing is known about it beforehand."""
_DRAWS = 200
_WRONG, _WRONG_BY = 0.02, 0.7
"""How often a forecast is wrong by more than its spread, and the spread in that case."""
_FARTHEST, _RAREST = 30.0, 1e-9
"""Standard deviations beyond which the tail of a normal distribution underflows, and the share of
such a tail that is left out: its quantile of 0 is not finite."""
_SMALLEST_S = _SURE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Running:
    """Work in progress."""

    forecast: Forecast
    """Its total duration, as forecast before its start."""
    elapsed_s: float
    done: float = 0.0
    """Share that is done, 0 to 1; 0 if unknown."""


def duration_s(known: Sequence[tuple[Features, float]], features: Features) -> Forecast | None:
    """Return the forecast of one duration; see `durations`. None if nothing is known."""
    found = durations(known, [features])
    return found[0] if found else None


def durations(
    known: Sequence[tuple[Features, float]], wanted: Sequence[Features]
) -> list[Forecast]:
    """Return forecasts of durations from known ones, the newest last; empty without known ones.

    Features count if some of the known and some of the wanted points have them.

    Args:
        known: Features and seconds of work that has ended.
        wanted: Features of future work.
    """
    known = known[-MOST_KNOWN:]
    if not known or not wanted:
        return []
    before = [features for features, _ in known]
    names = sorted(set().union(*before) & set().union(*wanted))
    columns, powers = _columns(names, before, wanted), _powers(before, wanted)
    logs = np.log([max(seconds, _SMALLEST_S) for _, seconds in known]) - powers[: len(known)]
    shapes = list(itertools.product(_NOISES, _SLOPES, _BENDS))
    found = [_posterior(columns, logs, shape) for shape in shapes]
    evidence = np.array([each[0] for each in found])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    means, errors = (np.stack([each[place] for each in found]) for place in (1, 2))
    mean = weights @ means
    shared = np.sqrt(weights @ (errors**2 + (means - mean) ** 2))
    noise = math.sqrt(weights @ np.array([noise**2 for noise, *_ in shapes]))
    medians = np.exp(mean + powers[len(known) :])
    return [
        Forecast(seconds=float(median), spread=noise, shared=float(error))
        for median, error in zip(medians, shared, strict=True)
    ]


def _posterior(
    columns: Floats, logs: Floats, shape: tuple[float, float, float]
) -> tuple[float, Floats, Floats]:
    """Return a shape's log evidence; mean and standard deviation of the unknown points."""
    noise, slope, bend = shape
    num_known = len(logs)
    products, squares = columns[:num_known] @ columns.T, (columns**2).sum(axis=1)
    apart = np.maximum(squares[:num_known, None] + squares - 2 * products, 0.0)
    alike = _FLAT + slope**2 * products + bend**2 * np.exp(-apart / (2 * _REACH**2))
    doubts = noise**2 * AGEING ** -np.arange(num_known)[::-1]
    lower = np.linalg.cholesky(alike[:, :num_known] + np.diag(doubts))
    explained = np.linalg.solve(lower, logs - logs.mean())
    reached = np.linalg.solve(lower, alike[:, num_known:])
    means = logs.mean() + reached.T @ explained
    before = _FLAT + slope**2 * squares[num_known:] + bend**2
    variances = before - (reached**2).sum(axis=0)
    usual = -0.5 * (math.log(noise / _USUAL_NOISE) ** 2 + math.log(slope / _USUAL_SLOPE) ** 2)
    evidence = -0.5 * (explained @ explained + num_known * math.log(2 * math.pi))
    evidence -= np.log(lower.diagonal()).sum()
    return usual + float(evidence), means, np.sqrt(np.maximum(variances, 0.0))


def corrected(running: Running) -> Forecast:
    """Return the total duration of work in progress, given its progress.

    The extrapolated total counts more, the more is done: the standard deviation of its logarithm is
    taken as (1 - done) / (2 sqrt(done)). Both are weighted by their variances. If they differ by
    more than these explain, the forecast is wrong, and its variance is increased.
    """
    before, done = running.forecast, min(running.done, 1.0)
    if done <= 0.0 or running.elapsed_s <= 0.0:
        return before
    error = max((1.0 - done) / (2.0 * math.sqrt(done)), _SURE)
    apart = math.log(running.elapsed_s / done / before.seconds)
    doubt = math.sqrt(max(before.spread**2 + before.shared**2, apart**2 - error**2, _SURE**2))
    trust = doubt**2 / (doubt**2 + error**2)
    return Forecast(
        seconds=before.seconds * math.exp(trust * apart),
        spread=doubt * error / math.hypot(doubt, error),
    )


def eta(remaining: Sequence[Forecast], slots: int, running: Sequence[Running] = ()) -> Eta:
    """Return when all work will be done, if each item begins, in order, once a slot is free.

    Durations are drawn many times, always the same. Those of work in progress are longer
    than the elapsed time, so that work which takes longer than forecast is not assumed to end now.

    Args:
        remaining: Work that has not begun, in order.
        slots: Items of work at once; at least the number that runs.
        running: Work in progress.
    """
    random = np.random.default_rng(0)
    left = [_left(random, each) for each in running]
    free = np.zeros((_DRAWS, max(slots, len(running), 1)))
    for index, each in enumerate(left):
        free[:, index] = each
    rows = np.arange(_DRAWS)
    for seconds in possible(random, remaining, _DRAWS):
        free[rows, free.argmin(axis=1)] += seconds
    low, middle, high = np.quantile(free.max(axis=1), [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return Eta(seconds=float(middle), half_s=float(high - low) / 2)


def longest_s(forecasts: Sequence[Forecast], level: float) -> float:
    """Return the seconds that all work, one after another, takes at most with a probability."""
    draws = possible(np.random.default_rng(0), forecasts, _DRAWS)
    return float(np.quantile(draws.sum(axis=0), level))


def possible(random: np.random.Generator, forecasts: Sequence[Forecast], draws: int = 1) -> Floats:
    """Return `(forecasts, draws)` possible seconds."""
    medians, spreads, shared = (
        np.array([getattr(each, name) for each in forecasts]).reshape(-1, 1)
        for name in ("seconds", "spread", "shared")
    )
    own, same = _normals(random, len(forecasts), draws), _normals(random, 1, draws)
    seconds: Floats = medians * np.exp(spreads * own + shared * same)
    for row, forecast in zip(seconds, forecasts, strict=True):
        row *= random.choice(forecast.shares or (1.0,), draws)
    return seconds


def together(parts: Sequence[Forecast]) -> Forecast:
    """Return work that is done one after another as one forecast."""
    seconds = sum(part.seconds for part in parts)
    shares = [(part.seconds / seconds, part) for part in parts]
    return Forecast(
        seconds=seconds,
        spread=math.hypot(*(share * part.spread for share, part in shares)),
        shared=math.hypot(*(share * part.shared for share, part in shares)),
    )


def _normals(random: np.random.Generator, rows: int, draws: int) -> Floats:
    """Return normal numbers; long rows are stratified, so that their median is exact."""
    if draws == 1:
        return random.standard_normal((rows, 1))
    evenly = [_NORMAL.inv_cdf((place + 0.5) / draws) for place in range(draws)]
    return random.permuted(np.tile(evenly, (rows, 1)), axis=1)


def _left(random: np.random.Generator, running: Running) -> Floats:
    """Return `(draws,)` seconds until work in progress ends.

    A forecast is right within its spread, or, rarely, wrong by much more; the longer work lasts,
    the more likely it is that the forecast was wrong.
    """
    forecast, elapsed_s = corrected(running), max(running.elapsed_s, _SMALLEST_S)
    right = max(math.hypot(forecast.spread, forecast.shared), 0.01)
    wrong = math.hypot(right, _WRONG_BY)
    reached = min(math.log(elapsed_s / forecast.seconds), _FARTHEST * wrong)
    tails = _above(reached / right), _above(reached / wrong)
    share = _WRONG * tails[1] / ((1 - _WRONG) * tails[0] + _WRONG * tails[1])
    is_wrong = random.uniform(size=_DRAWS) < share
    spreads = np.where(is_wrong, wrong, right)
    chances = random.uniform(_RAREST, 1.0, size=_DRAWS) * np.where(is_wrong, *tails[::-1])
    beyond: Floats = -np.array([_NORMAL.inv_cdf(chance) for chance in chances])
    come = max(running.done, elapsed_s / forecast.seconds)
    shares = [share for share in running.forecast.shares if share > come] or [1.0]
    ends_s: Floats = forecast.seconds * np.exp(spreads * beyond) * random.choice(shares, _DRAWS)
    return np.maximum(ends_s - elapsed_s, 0.0)


def _above(sigmas: float) -> float:
    """Return the probability of a normal number beyond so many deviations, also in the far tail."""
    return math.erfc(sigmas / math.sqrt(2)) / 2


def _columns(names: Sequence[str], known: Sequence[Features], wanted: Sequence[Features]) -> Floats:
    """Return `(points, columns)`: logarithms if all are positive, and words as 0 or 1; known first.

    Each is scaled to a variance of 1, except those in `EXPONENTS`, and to a mean of 0 of the known
    ones. If nothing differs there is one column, of zeros.
    """
    every = [*known, *wanted]
    columns: list[Floats] = []
    for name in names:
        values = [each.get(name, "") for each in every]
        if any(isinstance(value, str) for value in values):
            words = sorted({str(value) for value in values})
            found = [np.array([float(str(value) == word) for value in values]) for word in words]
        else:
            numbers = np.asarray(values, dtype=float)
            found = [np.log(numbers) if (numbers > 0).all() else numbers]
        is_natural = name in EXPONENTS
        columns += [each if is_natural else each / each.std() for each in found if each.std() > 0]
    values_of = np.stack(columns, axis=1) if columns else np.zeros((len(every), 1))
    centred: Floats = values_of - values_of[: len(known)].mean(axis=0)
    return centred


def _powers(known: Sequence[Features], wanted: Sequence[Features]) -> Floats:
    """Return `(points,)` logarithms of the duration by `EXPONENTS`, except for a constant."""
    every = [*known, *wanted]
    total = np.zeros(len(every))
    for name, power in EXPONENTS.items():
        values = [each.get(name) for each in every]
        numbers = [value for value in values if isinstance(value, (int, float)) and value > 0]
        if len(numbers) == len(every):
            total += power * np.log(np.asarray(numbers, dtype=float))
    return total


def features_of(recipe: Recipe, ranks: int) -> dict[str, float | str]:
    """Return what the duration of a training may depend on.

    Args:
        recipe: The recipe.
        ranks: Ranks that train.
    """
    whole = recipe.model_dump(mode="json", by_alias=True, include=set(_PARTS))
    return {**dict(_flat("", whole)), "ranks": float(ranks)}


def features_of_point(values: Mapping[str, object]) -> dict[str, float | str]:
    """Return the same for a trial, as far as it differs from the recipe: values by dotted key."""
    return dict(_flat("", values))


def _flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, float | str]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key.rpartition(".")[2] in _NO_WORK:
            continue
        if isinstance(value, Mapping):
            yield from _flat(f"{key}.", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
            yield key, float(value)
        elif isinstance(value, (int, float, str)) or value is None:
            yield key, shortened(str(value))
