"""The report of a suite: one HTML file that needs nothing else, with Optuna's figures."""

from __future__ import annotations

import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.report.html import ACCENT, Card, Report, Table, columns, figure, png
from headrace.suites.analysis import (
    INTERVAL,
    Results,
    are_folds,
    finished,
    importance_of,
    interval_words,
    range_words,
    ranked,
    results_of,
    spread_words,
    study_of,
    varied,
    varying,
)
from headrace.suites.names import short_keys, written

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Steps and values, by what is drawn."""

_DRAWING = threading.Lock()
"""Optuna draws by pyplot, whose current figure and style all threads share."""

_SIZE = (5.2, 3.4)
_MOST_DRAWN = 2000
_MOST_SLICES = 12
_MOST_OBJECTIVES = 3
_SHOWN = 20
_MOST_ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Content of the report."""

    run_id: str
    lead: str
    """One line below the title."""
    rows: Sequence[TrialRecord]
    objectives: Sequence[Objective]
    log_keys: Sequence[str]
    """Keys that were sampled on a logarithmic scale."""
    curves: Curves
    """The first objective of the best trials by optimizer step."""


def suite_report(inputs: ReportInputs) -> Report:
    """Return the report of a suite."""
    rows, objectives = inputs.rows, inputs.objectives
    found = results_of(rows, objectives)
    matters = importance_of(rows, objectives)
    training = {}
    if inputs.curves:
        metric = objectives[0].metric
        which = "trials" if are_folds(rows) else "best trials"
        training[f"{metric} of the {which}"] = _curves(inputs.curves, metric)
    return Report(
        title=inputs.run_id,
        lead=inputs.lead,
        cards=_cards(rows, found),
        figures=_figures(finished(rows), objectives, matters.shares, inputs.log_keys),
        tables=tuple(_tables(rows, found, matters.why_not)),
        training=training,
    )


def _figures(
    ended: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    shares: Mapping[str, float],
    log_keys: Sequence[str],
) -> dict[str, bytes]:
    """All figures by title; none without an ended trial that has a value.

    Of very many trials the best are drawn, and others by chance, the same ones each time.
    """
    if not ended or not objectives:
        return {}
    from optuna.visualization import matplotlib as plots

    ended = _drawn_of(ended, objectives[0])
    metric, sought = objectives[0].metric, objectives[:_MOST_OBJECTIVES]
    keys = varied(ended)
    by_end = sorted(ended, key=lambda row: row.finished_at or 0.0)
    study = study_of(by_end, [each.mode for each in sought], keys, log_keys)
    first: dict[str, Any] = {"target_name": metric}
    if len(sought) > 1:
        first["target"] = lambda trial: trial.values[0]
    found = {}
    if not are_folds(ended):
        title = f"{metric} of the trials as they ended"
        found[title] = _drawn(plots.plot_optimization_history, study, **first)
        if len(sought) > 1:
            metrics = [each.metric for each in sought]
            title = " and ".join(metrics)
            found[title] = _drawn(plots.plot_pareto_front, study, target_names=metrics)
        if len(keys) > 1:
            title = "Values of the trials"
            found[title] = _drawn(plots.plot_parallel_coordinate, study, **first)
    if shares:
        drawn, axes = figure(*_SIZE)
        names, least_first = short_keys(shares), list(shares)[::-1]
        labels = [names[key] for key in least_first]
        axes.barh(labels, [shares[key] for key in least_first], color=ACCENT)
        axes.set(xlim=(0, 1))
        found[f"Share of {metric} that comes from each key"] = png(drawn)
    for key in keys[:_MOST_SLICES]:
        found[f"{metric} by {key}"] = _drawn(plots.plot_slice, study, params=[key], **first)
    return found


def _drawn_of(ended: Sequence[TrialRecord], sought: Objective) -> Sequence[TrialRecord]:
    """All trials, or of very many the best tenth of those drawn and others by chance."""
    if len(ended) <= _MOST_DRAWN:
        return ended
    by_value, num_best = ranked(ended, [sought]), _MOST_DRAWN // 10
    others = random.Random(0).sample(by_value[num_best:], _MOST_DRAWN - num_best)
    return [*by_value[:num_best], *others]


def _drawn(plot: Callable[..., Any], study: Any, **options: Any) -> bytes:
    """A figure of Optuna's as PNG bytes, without its title: the report has one above."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with _DRAWING, plt.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its figures experimental
        axes = plot(study, **options)
        axes.set_title("")
        drawn = axes.figure
        drawn.set_layout_engine("tight")
        plt.close(drawn)
        return png(drawn)


def _curves(curves: Curves, metric: str) -> bytes:
    """A metric of several trials by optimizer step."""
    drawn, axes = figure(*_SIZE)
    for name, points in curves.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marker="o", markersize=2.5, linewidth=1.3, label=name)
    axes.set(xlabel="Optimizer step", ylabel=metric)
    axes.legend(fontsize=7, frameon=False)
    return png(drawn)


def _cards(rows: Sequence[TrialRecord], found: Results) -> tuple[Card, ...]:
    by_number = {row.number: row for row in rows}
    cards = []
    if found.best is not None:
        row, metric = by_number[found.best], found.objectives[0].metric
        note = f"trial {row.number}, {row.name}"
        cards.append(Card(name=f"best {metric}", value=f"{row.objective:.5g}", note=note))
    point = next(iter(found.points), None)
    if point is not None and point.spread is not None and point.spread.std is not None:
        cards.append(
            Card(
                name="best mean" if len(found.points) > 1 else "mean",
                value=spread_words(point.spread, 5),
                note=interval_words(point.spread, 5),
            )
        )
    if found.front:
        cards.append(Card(name="not beaten in all objectives", value=f"{len(found.front)}"))
    counts = Counter("pruned" if row.pruned else row.state.value for row in rows)
    cards.append(Card(name="trials", value=f"{len(rows):,}"))
    cards += [
        Card(name=state, value=f"{count:,}", is_bad=state in ("failed", "lost", "timed_out"))
        for state, count in counts.items()
    ]
    return tuple(cards)


def _tables(rows: Sequence[TrialRecord], found: Results, why_not: str) -> list[Table]:
    tables = []
    if found.front:
        on_front = [row for row in rows if row.number in found.front]
        tables.append(_trials("Trials that no other one beats in all", on_front, found))
    if any(len(point.numbers) > 1 for point in found.points):
        tables.append(_points(found))
    if found.points and found.points[0].folds:
        tables.append(_folds(found))
    tables.append(_marginals(found, why_not))
    if are_folds(rows):
        tables.append(_trials("Trials", rows[:_MOST_ROWS], found))
    else:
        best_first = ranked(rows, found.objectives)[:_MOST_ROWS]
        tables.append(_trials("Trials, the best first", best_first, found))
    failed = Counter(
        (row.failure_class.value, row.message.partition("\n")[0])
        for row in rows
        if row.failure_class is not None and row.state.is_final
    )
    if failed:
        tables.append(
            Table(
                title="Why trials failed",
                columns=(*columns("Trials", kind="number"), *columns("Class", "Why")),
                rows=[(str(count), *cause) for cause, count in failed.most_common(_SHOWN)],
            )
        )
    return tables


def _trials(title: str, rows: Sequence[TrialRecord], found: Results) -> Table:
    keys = varying(rows) or tuple(dict.fromkeys(key for row in rows for key in row.values))
    names = short_keys(keys)
    metrics = [each.metric for each in found.objectives]
    cells = [
        (
            str(row.number),
            "pruned" if row.pruned else row.state.value,
            *(_cell(row.values[key]) if key in row.values else "" for key in keys),
            *([f"{value:.5g}" for value in row.objectives] or [""] * len(metrics)),
            ("?" if row.attempts else "") if row.usd is None else f"${row.usd:,.2f}",
            row.node,
        )
        for row in rows
    ]
    heads = (
        *columns("#", kind="number"),
        *columns("State", *(names[key] for key in keys)),
        *columns(*metrics, "Cost", kind="number"),
        *columns("Node"),
    )
    return Table(title=title, columns=heads, rows=cells, empty="None.", shown=_SHOWN)


def _points(found: Results) -> Table:
    metric = found.objectives[0].metric if found.objectives else "objective"
    names = short_keys(dict.fromkeys(key for point in found.points for key in point.values))
    rows = [
        (
            ", ".join(f"{names[key]}={_cell(value)}" for key, value in point.values.items())
            or "the recipe's",
            f"{len(point.numbers) - point.missing} of {len(point.numbers)}",
            spread_words(point.spread, 5),
            interval_words(point.spread, 5),
        )
        for point in found.points[:_MOST_ROWS]
    ]
    heads = (
        *columns("Point"),
        *columns("Trials", f"{metric}, mean ± standard deviation", kind="number"),
        *columns(INTERVAL),
    )
    title = "Points: folds and seeds together"
    return Table(title=title, columns=heads, rows=rows, shown=_SHOWN)


def _folds(found: Results) -> Table:
    folds = found.points[0].folds
    rows = [(str(fold), str(each.count), spread_words(each, 5)) for fold, each in folds.items()]
    metric = found.objectives[0].metric if found.objectives else "objective"
    title = "Folds of the best point" if len(found.points) > 1 else "Folds"
    return Table(title=title, columns=columns("Fold", "Trials", metric, kind="number"), rows=rows)


def _marginals(found: Results, why_not: str) -> Table:
    rows = [
        (
            key,
            _cell(each.value) if each.between is None else range_words(each),
            str(each.spread.count),
            spread_words(each.spread, 5),
            interval_words(each.spread, 5),
        )
        for key, marginals in found.marginals.items()
        for each in marginals
    ]
    heads = (
        *columns("Key", kind="path"),
        *columns("Value"),
        *columns("Trials", "Mean ± standard deviation", kind="number"),
        *columns(INTERVAL),
    )
    title = "Means by the value of each key"
    if why_not:
        title += f" (importance of the keys unknown: {why_not})"
    return Table(title=title, columns=heads, rows=rows, empty="Nothing varies.", shown=_SHOWN)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else written(value)
