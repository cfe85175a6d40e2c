"""The curves of a training: losses, metrics and learning rates by optimizer step."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from headrace.steps.history import History

Points = Sequence[tuple[float, float]]
"""Optimizer steps and values."""


class Series(NamedTuple):
    """One curve."""

    name: str
    kind: Literal["loss", "metric", "lr"]
    points: Points


def series_of(history: History) -> list[Series]:
    """All curves of a training: the loss, metrics as they were first logged, learning rates.

    What evaluations gave meanwhile is named `<split>/<metric>`.
    """
    losses = [(row.step, row.loss) for row in history.rows if row.loss is not None]
    found = [Series("loss of training", "loss", losses)] if losses else []
    metrics: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in history.metrics:
        for name, value in row.metrics.items():
            metrics[name].append((row.step, value))
    for evaluated in sorted(history.evaluated, key=lambda row: row.step):
        for name, value in evaluated.metrics.items():
            metrics[f"{evaluated.split}/{name}"].append((evaluated.step, value))
    found += [Series(name, "metric", points) for name, points in metrics.items()]
    rates: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in history.rows:
        for index, rate in enumerate(each.learning_rates):
            rates[f"optimizer {index + 1}"].append((each.step, rate))
    return found + [Series(name, "lr", points) for name, points in rates.items()]


def thinned(points: Points, most: int) -> Points:
    """At most so many points, among them the first, the last, and the peaks in between.

    Of each stretch of equal length the least and the greatest value stay; pure.
    """
    if len(points) <= most:
        return points
    middle, stretches = points[1:-1], (most - 2) // 2
    cuts = [round(index * len(middle) / stretches) for index in range(stretches + 1)]
    kept = [points[0]]
    for begin, end in itertools.pairwise(cuts):
        stretch = middle[begin:end]
        least, most_of = min(stretch, key=_value), max(stretch, key=_value)
        kept += sorted({least, most_of})
    return [*kept, points[-1]]


def _value(point: tuple[float, float]) -> float:
    return math.inf if math.isnan(point[1]) else point[1]
