"""Metrics and figures that the recipe names, of a whole split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torchmetrics import Metric

from headrace.data.instantiate import Allowed, instantiate
from headrace.errors import UserCodeError, blaming_user_code
from headrace.evaluation.merge import Column, State, check_mergeable, merged
from headrace.evaluation.results import Judgement
from headrace.recipe.evaluate import EvaluateSpec
from headrace.report.html import Table, columns, png

_MOST_NAMED = 100
"""Longest vector whose values are metrics with names of their own."""

_MOST_COLUMNS = 30
_PNG = b"\x89PNG\r\n\x1a\n"


def make_metrics(spec: EvaluateSpec, allowed: Allowed) -> dict[str, Metric]:
    """Make the metrics of a recipe, by name.

    Raises:
        TargetError: A target is not allowed, or not a metric.
        UserCodeError: A metric cannot be made, or not be merged from shards.
    """
    made = {
        name: instantiate(target, allowed, f"evaluate.metrics.{name}")
        for name, target in spec.metrics.items()
    }
    for name, metric in made.items():
        check_mergeable(name, metric)
    return made


def own_values(
    metrics: Mapping[str, Metric], states: Sequence[Mapping[str, State]], classes: Sequence[str]
) -> Judgement:
    """Compute the metrics of a whole split from the states of its shards, in their order.

    Values of a vector or mapping are named `name.class`; undefined ones are left out. Vectors and
    matrices are tables. `metrics` are fresh; not each shard has logged all of them.

    Raises:
        UserCodeError: One raised.
    """
    found = {
        name.rpartition(":")[2]: _computed(name, metric, [each for each in states if name in each])
        for name, metric in metrics.items()
    }
    leaves = [leaf for name, value in found.items() for leaf in _leaves(name, value)]
    numbers = {
        name: number
        for path, value in leaves
        for name, number in _numbers(path, value, classes)
        if math.isfinite(number)
    }
    tables = tuple(
        _table(path, value, classes) for path, value in leaves if not isinstance(value, int | float)
    )
    return Judgement(metrics=numbers, tables=tables)


def _computed(name: str, metric: Metric, states: Sequence[Mapping[str, State]]) -> object:
    hint = "It was given all samples, and asked for its value."
    with blaming_user_code(f"The metric '{name}'", hint):
        return merged(metric, [state[name] for state in states]).compute()


_Leaf = tuple[str, object]
"""A name, dotted for values in mappings, and a value that is not a mapping."""


def _leaves(path: str, value: object) -> Iterator[_Leaf]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    elif isinstance(value, torch.Tensor) and value.numel() == 1:
        yield path, float(value)
    else:
        yield path, value


def _numbers(path: str, value: object, classes: Sequence[str]) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield path, float(value)
    elif isinstance(value, torch.Tensor) and value.ndim == 1 and len(value) <= _MOST_NAMED:
        for name, number in zip(_names(len(value), classes), value.tolist(), strict=True):
            yield f"{path}.{name}", float(number)


def _table(path: str, value: object, classes: Sequence[str]) -> Table:
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    if not isinstance(value, torch.Tensor) or len(shape) not in (1, 2) or shape[-1:] == (0,):
        what = f"of the shape {shape}" if shape else f"a {type(value).__name__}"
        return Table(title=path, columns=(), rows=(), empty=f"It is {what}: draw it by a figure.")
    cells = value.double().reshape(len(value), -1)[:, :_MOST_COLUMNS].tolist()
    titles = ["Value"] if len(shape) == 1 else _names(shape[1], classes)[:_MOST_COLUMNS]
    return Table(
        title=path,
        columns=(*columns(""), *columns(*titles, kind="number")),
        rows=[
            (name, *(f"{number:.6g}" for number in row))
            for name, row in zip(_names(len(cells), classes), cells, strict=True)
        ],
    )


def _names(length: int, classes: Sequence[str]) -> list[str]:
    return list(classes) if len(classes) == length else [str(index) for index in range(length)]


def own_figures(spec: EvaluateSpec, allowed: Allowed, results: Mapping[str, Column]) -> Judgement:
    """Call each figure of a recipe with the results of the samples: arrays and lists by name.

    Raises:
        TargetError: One is not allowed.
        UserCodeError: A function raised, or returned no figure.
    """
    found = Judgement()
    for name, target in spec.figures.items():
        draw = instantiate(target, allowed, f"evaluate.figures.{name}", partial=True)
        given = {key: _plain(column) for key, column in results.items()}
        hint = f"It was given a mapping of {', '.join(given)}."
        with blaming_user_code(f"The figure '{name}'", hint):
            drawn = _drawn(draw(given))
        if isinstance(drawn, bytes):
            found.figures[name] = drawn
        elif isinstance(drawn, str):
            found.pages[name] = drawn
        else:
            raise UserCodeError(
                f"The figure '{name}' gave {type(drawn).__name__}",
                "Return a Figure of matplotlib, the bytes of a PNG, or HTML as text.",
            )
    return found


def _drawn(drawn: object) -> object:
    """Return the PNG bytes of a figure of matplotlib; other values unchanged."""
    if isinstance(drawn, Figure):
        return png(drawn)
    return None if isinstance(drawn, bytes) and not drawn.startswith(_PNG) else drawn


def _plain(column: Column) -> object:
    return column.numpy().copy() if isinstance(column, torch.Tensor) else list(column)
