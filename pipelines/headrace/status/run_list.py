"""The list of runs, their marks, and user actions, among them refused ones."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from pydantic import ConfigDict, Field

from headrace.errors import UnknownNameError, UserError, nearest
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Comparable
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import Marks, RunFilter, condition
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.audit import Actor, note, refused_requests
from headrace.runs.planned_steps import run_metrics
from headrace.states import StepState
from headrace.status.run import MainMetric, RunView, run_views
from headrace.status.traits import traits_of

_MOST_ACTS = 200
_NEWEST = RunFilter()
_ALL = RunFilter(limit=1_000_000, kind=("all",))
_FOR_ACTS = {"limit", "state", "user", "text"}
"""Filters that apply to refused requests."""


class ActView(Record):
    """An action that a user requested."""

    model_config = ConfigDict(from_attributes=True)

    at: float = Field(validation_alias="created_at")
    """Seconds since the epoch."""
    user: str
    """Empty if only Airflow's audit log has it."""
    through: str
    run_id: str
    what: str
    details: str
    refused: str
    """Why it was refused; empty if it was not."""


class RunsPage(Record):
    """Runs that a filter lets through."""

    now: float
    rows: tuple[RunView, ...]
    metric: str = ""
    """Metric that they are sorted by, which is that of each row; empty: the newest first."""
    refused: tuple[ActView, ...] = ()
    """Refused requests in Airflow, no older than the rows."""


def runs_page(wanted: RunFilter = _NEWEST, sites: Sites = None, asker: str = "") -> RunsPage:
    """Return the runs that a filter lets through.

    Runs that failed include the refused requests of a user, or of all users.
    """
    rows = tuple(row.model_copy(update={"metrics": {}}) for row in found_runs(wanted, sites))
    refused: tuple[ActView, ...] = ()
    others = wanted.model_dump(exclude=_FOR_ACTS, exclude_defaults=True)
    if not others and (not wanted.state or StepState.FAILED in wanted.state):
        since = rows[-1].created_at if len(rows) == wanted.limit else 0.0
        refused = tuple(
            act
            for act in _acts(refused_requests(asker, wanted.limit, since))
            if wanted.text.lower() in f"{act.user} {act.details} {act.refused}".lower()
            and (not wanted.user or act.user in wanted.user)
        )
    return RunsPage(now=time.time(), rows=rows, metric=wanted.order[0], refused=refused)


def found_runs(wanted: RunFilter, sites: Sites = None) -> tuple[RunView, ...]:
    """Return the runs that a filter lets through, of some sites or all.

    Raises:
        UnknownNameError: None of the runs has the metric, or the key of a condition; or no run has
            the kind, user or recipe.
        UserError: A condition or a day is not one, or the direction of the metric is unknown.
    """
    ledger = open_ledger()
    if not (wanted.where or wanted.sort):
        return run_views(ledger.find_runs(wanted, sites) or _none(wanted, sites))
    found = ledger.comparable(wanted, sites) or _none(wanted, sites)
    metrics, metric = metrics_of(found), wanted.order[0]
    run_ids = [run.run_id for run in _meeting(wanted, found, metrics)]
    if not run_ids or not metric:
        return _views(run_ids[: wanted.limit])
    values = best_first(wanted, metrics)
    place = {run_id: place for place, run_id in enumerate(values)}
    run_ids.sort(key=lambda run_id: place.get(run_id, len(place)))
    shown = {run_id: MainMetric(name=metric, value=each) for run_id, each in values.items()}
    return tuple(
        row.model_copy(update={"metric": shown.get(row.run_id)})
        for row in _views(run_ids[: wanted.limit])
    )


def metrics_of(runs: Sequence[Comparable | RunRecord]) -> dict[str, dict[str, float]]:
    """Return the metrics of runs by their ids; of a suite those of its best trial."""
    others = [run.run_id for run in runs if run.kind == "suite" or not run.state.is_final]
    found = {run.run_id: run_metrics(run.outputs) for run in runs}
    return found | {row.run_id: row.metrics for row in _views(others)}


def best_first(wanted: RunFilter, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the values of the metric to sort by, the best first, NaN last, by run id.

    Args:
        wanted: The filter with the metric.
        metrics: Metrics of runs, the newest first; runs without this one are left out.

    Raises:
        UnknownNameError: No run has the metric.
        UserError: The direction of the metric is unknown.
    """
    name, mode = wanted.order
    values = {run_id: of[name] for run_id, of in metrics.items() if name in of}
    if not values:
        raise _unknown("metric", name, chain(*metrics.values()))
    mode = mode or better_mode(name, open_ledger().run(next(iter(values))))
    sign = 1 if mode == "min" else -1
    pairs = sorted(values.items(), key=lambda pair: (math.isnan(pair[1]), sign * pair[1]))
    return dict(pairs)


def _views(run_ids: Sequence[str]) -> tuple[RunView, ...]:
    """Return the state of runs in the order of their ids."""
    rows = {row.run_id: row for row in run_views(open_ledger().runs_of(run_ids))}
    return tuple(rows[run_id] for run_id in run_ids if run_id in rows)


def mark_runs(run_ids: Sequence[str], marks: Marks, by: Actor) -> None:
    """Change tags, note and star of runs; raise `UnknownNameError` as `Ledger.mark_runs`."""
    open_ledger().mark_runs(run_ids, marks)
    given = marks.model_dump(include={*Marks.model_fields}, exclude_defaults=True)
    for run_id in run_ids:
        note(by, "mark", run_id, json.dumps(given, ensure_ascii=False))


def _none(wanted: RunFilter, sites: Sites) -> tuple[()]:
    """Return no runs; raise if no run at all has a kind, user or recipe of the filter."""
    names = {"kind": wanted.kind, "user": wanted.user, "recipe_name": wanted.recipe}
    every = open_ledger().find_runs(_ALL, sites) if any(names.values()) else ()
    for column, given in names.items():
        known = {getattr(row, column) for row in every} - {""}
        for name in {*given} - known - {"all"} if every else ():
            raise _unknown(column.partition("_")[0], name, known)
    return ()


def _meeting(
    wanted: RunFilter, found: Sequence[Comparable], metrics: Mapping[str, Mapping[str, float]]
) -> Sequence[Comparable]:
    """Return the runs that meet all conditions; raise if none has the key of one."""
    left = found
    for key, is_met in map(condition, wanted.where):
        values = {run.run_id: _values(run, metrics[run.run_id], key) for run in found}
        if found and not any(values.values()):
            names = (name for run in found for name, _ in _named(run))
            raise _unknown("override or metric", key, chain(names, *metrics.values()))
        left = [run for run in left if any(map(is_met, values[run.run_id]))]
    return left


def _values(run: Comparable, metrics: Mapping[str, float], key: str) -> list[str | float]:
    """Return the metric, and what differs from other runs, by a whole key or its last part."""
    values: list[str | float] = [metrics[key]] if key in metrics else []
    end = f".{key}"
    return values + [text for name, text in _named(run) if name == key or name.endswith(end)]


def _named(run: Comparable) -> Iterator[tuple[str, str]]:
    """Yield dataset, seed and overrides by their keys; an override wins."""
    words = (word.lstrip("+").partition("=") for word in run.overrides)
    given = {key: text for key, sign, text in words if sign and key[0] != "~"}
    for key, value in {"dataset": run.dataset, "seed": run.seed, **given}.items():
        if value not in ("", None):
            yield key, str(value)


def _unknown(what: str, name: str, valid: Iterable[str]) -> UnknownNameError:
    return UnknownNameError(f"No run of the list has the {what} '{name}'", nearest(name, {*valid}))


def better_mode(metric: str, run: RunRecord) -> str:
    """Return whether lower (`min`) or higher (`max`) values are better.

    Raises:
        UserError: It is unknown: the metric is not built in, not monitored and no objective.
    """
    from headrace.recipe.evaluate import BETTER_WHEN  # not needed for the newest runs

    traits = traits_of(run.folder)
    modes = {each.metric: each.mode for each in traits.objectives}
    mode = {traits.monitor or "": traits.monitor_mode, **modes, **BETTER_WHEN}.get(metric)
    if mode is None:
        what = f"Whether lower or higher values of '{metric}' are better is unknown"
        raise UserError(what, f"Write {metric}:min (lower is better) or {metric}:max.")
    return mode


def acts_of(run_id: str) -> tuple[ActView, ...]:
    """Return the actions on a run, the newest first."""
    return _acts(open_ledger().acts(run_id=run_id, limit=_MOST_ACTS))


def check_refused(owner: str, user: str) -> None:
    """Raise if a request of a DAG run, of one user or of any, was refused.

    Raises:
        UserError: It was refused; the message gives the reason.
    """
    for row in open_ledger().acts(user, owner, limit=1, refused=True):
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row.created_at))
        asked = f"{Actor(row.user or 'a user', row.through)} asked on {when} for: {row.details}"
        raise UserError(row.refused, f"{asked}. No run was made: trigger a new DAG run.")


def _acts(found: Iterable[ActRecord]) -> tuple[ActView, ...]:
    return tuple(map(ActView.model_validate, found))
