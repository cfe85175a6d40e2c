"""Suites and their trials as rich renderables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.console import duration, hundredths, plain_table
from headrace.cli.listing import Listing
from headrace.cli.words import ABANDONED, cost_words, heading, styled, took_words
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.base import from_json
from headrace.recipe.suite import Objective
from headrace.status.suite import SuiteView, state_of
from headrace.suites.analysis import INTERVAL, PointResult, interval_words, spread_words, varying
from headrace.suites.names import short_keys
from headrace.suites.records import SiteSummary

_MOST_RUNNING = 10
_MOST_METRICS = 3
_COUNTED = ("running", "waiting", "ended")


def trials_list(rows: Sequence[TrialRecord], objectives: Sequence[Objective]) -> Listing:
    """Return a list with a row for each trial."""
    metrics = [each.metric for each in objectives]
    sites = ["site"] if any(row.site for row in rows) else []
    titles = ("#", "state", "differs in", *metrics, "time", *sites, "node", "why it failed")
    listed = Listing(*titles, figures=("#", *metrics, "time"))
    keys = varying(rows) or tuple(dict.fromkeys(key for row in rows for key in row.values))
    names = short_keys(keys)
    for row in rows:
        values = {names[key]: row.values[key] for key in keys if key in row.values}
        given = [*row.objectives, *(None for _ in metrics)][: len(metrics)]
        listed.add(
            str(row.number),
            styled(state_of(row), f" ({row.attempts})" if row.attempts > 1 else ""),
            values_words(values) or row.name,
            *("" if value is None else f"{value:.5g}" for value in given),
            took_words(row),
            *(row.site for _ in sites),
            row.node,
            _cause(row),
        )
    return listed


def points_table(found: Sequence[PointResult], objectives: Sequence[Objective]) -> Table:
    """Return a table with a row for each point, whose trials differ only by fold and seed."""
    names = short_keys(dict.fromkeys(key for point in found for key in point.values))
    table = plain_table("point", figures=("trials", _objective(objectives), INTERVAL))
    table.columns[0].ratio = 3
    for point in found:
        values = Text(values_words({names[key]: value for key, value in point.values.items()}))
        missing = f"{len(point.numbers) - point.missing}/" if point.missing else ""
        spread = spread_words(point.spread), interval_words(point.spread)
        table.add_row(values or "the recipe's", f"{missing}{len(point.numbers)}", *spread)
    return table


def folds_table(point: PointResult, objectives: Sequence[Objective]) -> Table:
    """Return a table with a row for each fold of a point, and one for their mean."""
    folds = (*point.folds.items(), ("all", point.spread))
    rows = ((str(fold), str(at.count if at else 0), spread_words(at)) for fold, at in folds)
    return plain_table("fold", figures=("trials", _objective(objectives)), rows=rows)


def sites_table(sites: Sequence[SiteSummary]) -> Table:
    """Return a table with a row for each of several sites; US dollars so far and at the end."""
    table = plain_table("site", "state", figures=("slot/h", *_COUNTED, "cost", "expected", "left"))
    for each in sites:
        table.add_row(
            each.site,
            _site_state(each),
            "free" if each.usd_per_hour == 0 else _usd(each.usd_per_hour),
            f"{each.running}/{each.slots if each.limit is None else min(each.slots, each.limit)}",
            f"{each.assigned:,}",
            f"{each.ended:,}",
            _usd(each.usd),
            _usd(each.expected_usd),
            duration(each.eta_s),
        )
    return table


def _site_state(site: SiteSummary) -> str:
    return f"{site.state}: {site.why}" if site.why else site.state


def _usd(value: float | None) -> str:
    return "?" if value is None else f"${hundredths(value)}"


def _objective(objectives: Sequence[Objective]) -> str:
    return objectives[0].metric if objectives else "objective"


def live(view: SuiteView) -> RenderableType:
    """Return the table of a running suite."""
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=max(view.trials.total, 1), completed=view.trials.ended, width=30),
        _counts(view),
        f"{_left(view)} left" if view.eta_s is not None else "",
    )
    titles = ("#", "trial", "attempt", "node", "done", "time", "metrics")
    running = Table(*titles, box=None, pad_edge=False)
    for each in view.running[:_MOST_RUNNING]:
        running.add_row(
            str(each.number),
            Text(each.name, overflow="fold"),
            str(each.attempt),
            each.node,
            f"{each.done:.0%}",
            duration(time.time() - each.started_at),
            Text(_newest(each.metrics, [one.metric for one in view.objectives])),
        )
    more = len(view.running) - _MOST_RUNNING
    notes = [Text(f"and {more} more", style="dim")] if more > 0 else []
    waiting = [each for each in view.running if each.waits]
    if waiting:
        others = f", and {len(waiting) - 1} others wait" if len(waiting) > 1 else ""
        notes.append(Text(f"#{waiting[0].number} {waiting[0].waits}{others}"))
    table = [running] if view.running else []
    state = styled(view.state.value, shown=_state_words(view))
    head = heading(view, state, f" · {duration(view.elapsed_s)}")
    sites = [sites_table(view.sites)] if view.sites else []
    return Group(head, bar, *sites, *table, *notes, *_foot(view))


def _newest(metrics: Mapping[str, float], first: Sequence[str]) -> str:
    """Return a running trial's metrics, the objectives first."""
    names = sorted(metrics, key=lambda name: (name not in first, name))
    return " ".join(f"{name}={metrics[name]:.4g}" for name in names[:_MOST_METRICS])


def closing(view: SuiteView) -> RenderableType:
    """Return what is shown of the trials of a suite that has ended."""
    sites = [sites_table(view.sites)] if view.sites else []
    return Group(Text(_counts(view)), *sites, *_foot(view.model_copy(update={"cost": None})))


def counts_words(view: SuiteView) -> str:
    """Return the state of a suite in a line, and one for each of several sites."""
    left = f", {_left(view)} left" if view.eta_s is not None else ""
    best_trial = _best(view)
    best = f", {_best_title(view)} {best_trial}" if best_trial else ""
    return "\n".join(
        (f"{_state_words(view)}: {_counts(view)}{best}{left}", *map(_site_words, view.sites))
    )


def _site_words(site: SiteSummary) -> str:
    values = (site.running, site.assigned, site.ended)
    counts = ", ".join(f"{value:,} {name}" for value, name in zip(values, _COUNTED, strict=True))
    return f"  {site.site}: {counts}, {_usd(site.usd)} so far, {_site_state(site)}"


def _best(view: SuiteView) -> str:
    """Return the best value and its trial, or the mean of folds; empty without a value."""
    if view.point is not None and view.point.spread is not None:
        mean = f"{view.objectives[0].metric} {spread_words(view.point.spread)}"
        return f"{mean} of {len(view.point.folds)} folds"
    if view.best is None or view.best_value is None:
        return ""
    return f"{view.objectives[0].metric} {view.best_value:.4g} (#{view.best} {view.best_name})"


def values_words(values: dict[str, JsonValue]) -> str:
    """Return the values of a trial as a short text: `lr=0.1 depth=4`."""
    return " ".join(
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={from_json(value)}"
        for key, value in values.items()
    )


def _foot(view: SuiteView) -> Iterator[Text]:
    if best := _best(view):
        yield Text(f"{_best_title(view)}: {best}")
    if view.cost is not None:
        yield Text(f"cost: {cost_words(view.cost)}")
    if view.damage:
        yield Text(view.damage, style="yellow")


def _best_title(view: SuiteView) -> str:
    return "best" if view.point is None else "mean"


def _state_words(view: SuiteView) -> str:
    if view.is_orphan:
        return ABANDONED
    return "paused" if view.paused else view.state.value


def _counts(view: SuiteView) -> str:
    total, counts = view.trials.total, view.trials.counts
    parts = [f"{count:,} {state}" for state, count in counts.items()]
    unknown = total - sum(counts.values())
    parts += [f"{unknown:,} to come"] if unknown > 0 else []
    return f"{total:,}: {', '.join(parts)}" if len(parts) > 1 else "".join(parts) or "none yet"


def _left(view: SuiteView) -> str:
    if view.eta_s is None:
        return ""
    error = f" ± {duration(view.eta_error_s)}" if view.eta_error_s else ""
    return f"{duration(view.eta_s)}{error}"


def _cause(row: TrialRecord) -> str:
    if row.failure_class is None:
        return ""
    why, known = row.message.partition("\n")[0], row.failure_class.value
    return why if why.lower().startswith(known) else f"{known}: {why}"
