"""Figures of a suite's report, as PNG bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib import colormaps
from pydantic import JsonValue

from headrace.evaluation.drawing import ACCENT, figure, png
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.suites.analysis import (
    Marginal,
    are_folds,
    finished,
    front,
    numbers_of,
    varying,
)
from headrace.suites.names import short_keys, written

_SIZE = (5.2, 3.4)
_MOST_LINES = 500
_MOST_MARGINALS = 12
_LOG_FROM = 100.0
_MOST_WORDS = 12

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Steps and values, by what is drawn."""


def suite_figures(
    rows: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    marginals: Mapping[str, Sequence[Marginal]],
    importance: Mapping[str, float],
    log_keys: Sequence[str] = (),
) -> dict[str, bytes]:
    """All figures by title; none without an ended trial that has a value.

    What was sampled on a logarithmic scale (`log_keys`) is drawn on one.
    """
    ended = finished(rows)
    if not ended or not objectives:
        return {}
    metric = objectives[0].metric
    found = {}
    if not are_folds(ended):
        found[f"{metric} of the trials as they ended"] = _over_time(ended, objectives[0])
    if len(objectives) > 1 and not are_folds(ended):
        found[f"{metric} and {objectives[1].metric}"] = _front(ended, objectives)
    if len(varying(ended)) > 1 and not are_folds(ended):
        found["Values of the trials, best ones on top"] = _parallel(ended, objectives[0], log_keys)
    if importance:
        found[f"Share of {metric} that comes from each key"] = _importance(importance)
    for key, told in list(marginals.items())[:_MOST_MARGINALS]:
        found[f"{metric} by {key}"] = _marginal(ended, key, told, metric, is_log=key in log_keys)
    return found


def curves_figure(curves: Curves, metric: str) -> bytes:
    """A metric of several trials by optimizer step."""
    drawn, axes = figure(*_SIZE)
    for name, points in curves.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marker="o", markersize=2.5, linewidth=1.3, label=name)
    axes.set(xlabel="Optimizer step", ylabel=metric)
    axes.legend(fontsize=7, frameon=False)
    return png(drawn)


def _over_time(ended: Sequence[TrialRecord], objective: Objective) -> bytes:
    """Each trial at the time when it ended, and the best one so far."""
    drawn, axes = figure(*_SIZE)
    rows = sorted(ended, key=lambda row: row.finished_at or 0.0)
    began = min(row.started_at or row.finished_at or 0.0 for row in rows)
    hours = [((row.finished_at or began) - began) / 3600 for row in rows]
    values = [row.objective or 0.0 for row in rows]
    better = min if objective.mode == "min" else max
    best = list(accumulate(values, better))
    axes.plot(hours, values, "o", markersize=3, alpha=0.5, color="grey", label="a trial")
    axes.step(hours, best, where="post", color=ACCENT, linewidth=1.4, label="the best so far")
    _scale(axes, values, "y")
    axes.set(xlabel="Hours since the first trial began", ylabel=objective.metric)
    axes.legend(fontsize=8, frameon=False)
    return png(drawn)


def _front(ended: Sequence[TrialRecord], objectives: Sequence[Objective]) -> bytes:
    """The first two objectives; trials that no other one beats in all are marked."""
    drawn, axes = figure(*_SIZE)
    on_front = set(front(ended, objectives))
    for name, chosen, color in (("a trial", False, "grey"), ("not beaten", True, ACCENT)):
        rows = [row for row in ended if (row.number in on_front) is chosen]
        places = [row.objectives[:2] for row in rows]
        axes.plot(
            [place[0] for place in places],
            [place[1] for place in places],
            "o",
            markersize=4,
            alpha=0.8,
            color=color,
            label=name,
        )
    axes.set(xlabel=objectives[0].metric, ylabel=objectives[1].metric)
    axes.legend(fontsize=8, frameon=False)
    return png(drawn)


def _parallel(ended: Sequence[TrialRecord], objective: Objective, log_keys: Sequence[str]) -> bytes:
    """A line a trial through its values, an axis each, coloured by the objective."""
    keys = [key for key in varying(ended) if all(key in row.values for row in ended)]
    sign = 1 if objective.mode == "min" else -1
    rows = sorted(ended, key=lambda row: -sign * (row.objective or 0.0))[-_MOST_LINES:]
    columns: dict[str, list[JsonValue]] = {key: [row.values[key] for row in rows] for key in keys}
    columns[objective.metric] = [row.objective for row in rows]
    drawn, axes = figure(max(_SIZE[0], 1.2 * len(columns)), _SIZE[1])
    places = [_places(values, is_log=key in log_keys) for key, values in columns.items()]
    colors = colormaps["viridis"]
    for number, heights in enumerate(zip(*places, strict=True)):
        rank = number / max(len(rows) - 1, 1)
        axes.plot(range(len(columns)), heights, color=colors(rank), alpha=0.6, linewidth=1)
    for place, values in enumerate(columns.values()):
        axes.axvline(place, color="black", linewidth=0.6, alpha=0.5)
        low, high = _ends(values)
        axes.annotate(low, (place, -0.03), fontsize=7, ha="center", va="top")
        axes.annotate(high, (place, 1.03), fontsize=7, ha="center", va="bottom")
    names = [*short_keys(keys).values(), objective.metric]
    axes.set_xticks(range(len(columns)), names, fontsize=8)
    axes.tick_params(axis="x", length=0, pad=14)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return png(drawn)


def _importance(shares: Mapping[str, float]) -> bytes:
    drawn, axes = figure(*_SIZE)
    names = short_keys(shares)
    keys = list(shares)[::-1]
    axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=ACCENT)
    axes.set(xlim=(0, 1))
    return png(drawn)


def _marginal(
    ended: Sequence[TrialRecord], key: str, told: Sequence[Marginal], metric: str, *, is_log: bool
) -> bytes:
    """Trials by the value of one key, and their means with the 95 % interval."""
    drawn, axes = figure(*_SIZE)
    rows = [row for row in ended if key in row.values]
    values = [row.values[key] for row in rows]
    places, means = numbers_of(values), numbers_of([each.value for each in told])
    words: list[str] = []
    if not places:
        words = [written(each.value) for each in told]
        places = [float(words.index(written(value))) for value in values]
        means = [float(place) for place in range(len(words))]
    axes.plot(places, [row.objective or 0.0 for row in rows], "o", markersize=3, color="grey")
    spreads = [each.spread for each in told]
    axes.errorbar(
        means,
        [each.mean for each in spreads],
        [0.0 if each.high is None else each.high - each.mean for each in spreads],
        fmt="o" if words else "-o",
        markersize=4,
        capsize=2,
        color=ACCENT,
    )
    if words:
        names = [word.strip('"')[:_MOST_WORDS] for word in words]
        axes.set_xticks(range(len(words)), names, fontsize=8)
    else:
        _scale(axes, places, "x", is_log=is_log)
    axes.set(xlabel=key, ylabel=metric)
    return png(drawn)


def _places(values: Sequence[JsonValue], *, is_log: bool) -> list[float]:
    """Where values lie on an axis from 0 to 1; words evenly, numbers far apart by logarithms."""
    numbers = numbers_of(values)
    if not numbers:
        order = sorted({written(value) for value in values})
        numbers = [float(order.index(written(value))) for value in values]
    low, high = min(numbers), max(numbers)
    if low > 0 and (is_log or high / low >= _LOG_FROM):
        numbers = [math.log(value) for value in numbers]
        low, high = min(numbers), max(numbers)
    return [0.5 if high == low else (value - low) / (high - low) for value in numbers]


def _ends(values: Sequence[JsonValue]) -> tuple[str, str]:
    numbers = numbers_of(values)
    if numbers:
        return f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    order = sorted({value if isinstance(value, str) else written(value) for value in values})
    return order[0][:_MOST_WORDS], order[-1][:_MOST_WORDS]


def _scale(axes: object, values: Sequence[float], which: str, *, is_log: bool = False) -> None:
    if min(values) > 0 and (is_log or max(values) / min(values) >= _LOG_FROM):
        getattr(axes, f"set_{which}scale")("log")
