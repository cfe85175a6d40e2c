"""The list of runs, their marks, and user actions, among them refused ones."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ConfigDict, Field

from headrace.errors import LedgerError, UserError
from headrace.files.layout import RunFolder
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_facts import Fact
from headrace.ledger.run_filter import Marks, RunFilter
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.audit import Actor, note, refused_requests
from headrace.runs.owners import user_of
from headrace.runs.planned_steps import run_metrics
from headrace.states import StepState
from headrace.status.run import MainMetric, RunView, json_of, run_views, traits_of

logger = logging.getLogger(__name__)

_MOST_ACTS = 200
_INDEXED_AT_ONCE = 500
_LOWER_IS_BETTER = re.compile(r"loss|err|mae|mse|perplexity|wer|cer|time|_s$", re.IGNORECASE)
_FOR_ACTS = ("limit", "state", "user", "text")
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


def runs_page(wanted: RunFilter, sites: Sites = None, asker: str = "") -> RunsPage:
    """Return the runs that a filter lets through.

    Runs that failed include the refused requests of a user, or of all users.

    Raises:
        UnknownNameError: As `found_runs`.
    """
    rows = found_runs(wanted, sites)
    refused: tuple[ActView, ...] = ()
    others = wanted.model_dump(exclude={*_FOR_ACTS}, exclude_defaults=True)
    if not others and (not wanted.state or StepState.FAILED in wanted.state):
        since = rows[-1].created_at if len(rows) == wanted.limit else 0.0
        found = _acts(refused_requests(asker, wanted.limit, since))
        refused = tuple(act for act in found if _is_wanted(act, wanted))
    return RunsPage(now=time.time(), rows=rows, metric=wanted.order[0], refused=refused)


def found_runs(
    wanted: RunFilter, sites: Sites = None, *, with_metrics: bool = False
) -> tuple[RunView, ...]:
    """Return the runs that a filter lets through, of some sites or all.

    Raises:
        UnknownNameError: No run has the metric to sort by, or there is none because no run has the
            user, recipe, kind, or key of a condition.
    """
    index_runs()
    ledger, (metric, mode) = open_ledger(), wanted.order
    records = ledger.find_runs(wanted, sites, mode or _better(metric))
    rows = run_views(records)
    if not metric and not with_metrics:
        return rows
    metrics = ledger.metrics_of([row.run_id for row in rows])
    return tuple(_with_metrics(row, metrics.get(row.run_id, {}), metric) for row in rows)


def mark_runs(run_ids: Sequence[str], marks: Marks, by: Actor) -> None:
    """Change tags, note and star of runs, of all or, if a mark cannot be set, of none.

    Raises:
        UnknownNameError: A run does not exist, or lacks a tag to remove.
        UserError: A run would have too many tags.
    """
    open_ledger().mark_runs(run_ids, marks)
    given = marks.model_dump(include={*Marks.model_fields}, exclude_defaults=True)
    details = json.dumps(given, ensure_ascii=False)
    for run_id in run_ids:
        note(by, "mark", run_id, details)


def index_runs() -> None:
    """Enter overrides and metrics of runs that have changed, and of runs of earlier releases.

    Lists then find them by SQL. A ledger that cannot be written stays as it is.
    """
    ledger = open_ledger()
    try:
        while some := ledger.not_indexed(_INDEXED_AT_ONCE):
            ledger.put_facts([(record, tuple(_facts(record))) for record in map(_whole, some)])
    except LedgerError as error:
        logger.warning("Newest changes of runs are not found by filters: %s", error.what)


def _whole(record: RunRecord) -> RunRecord:
    """Add what an earlier release has not entered, from the run's folder if it can be read."""
    if record.kind:
        return record
    folder = RunFolder(Path(record.folder))
    record.user = user_of(folder, record.owner)
    with suppress(ValueError, OSError):  # a folder that is gone, or of another account
        recipe, accounts = json_of(folder.recipe), json_of(folder.site).get("accounts") or {}
        record.kind, record.user = traits_of(record).kind, accounts.get(record.user, record.user)
        record.dataset = (recipe.get("dataset") or {}).get("name", "")
        record.seed = recipe.get("seed")
    return record


def _facts(record: RunRecord) -> Iterator[Fact]:
    given = {"dataset": record.dataset} if record.dataset else {}
    given |= {} if record.seed is None else {"seed": str(record.seed)}
    for word in record.overrides:
        key, sign, text = word.lstrip("+").partition("=")
        if sign and not key.startswith("~"):
            given[key] = text
    yield from (Fact("override", key, text) for key, text in given.items())
    metrics = run_metrics(record.outputs)
    best = record.outputs.get("suite", {}).get("best")
    if isinstance(best, int):
        for trial in open_ledger().trials_numbered(record.run_id, [best]).values():
            metrics = trial.metrics
    yield from (Fact("metric", name, repr(value)) for name, value in metrics.items())


def _better(metric: str) -> str:
    """Return whether lower (`min`) or higher (`max`) values of a metric are better.

    The newest run with it decides if it monitors the metric or has it as an objective, else the
    name.
    """
    record = open_ledger().newest_with(metric) if metric else None
    if record is not None:
        traits = traits_of(record)
        modes = {each.metric: each.mode for each in traits.objectives}
        if traits.monitor == metric:
            return traits.monitor_mode
        if metric in modes:
            return modes[metric]
    return "min" if _LOWER_IS_BETTER.search(metric) else "max"


def _with_metrics(row: RunView, metrics: Mapping[str, float], metric: str) -> RunView:
    updates: dict[str, object] = {"metrics": dict(metrics)}
    if metric:
        is_known = metric in metrics
        updates = {"metric": MainMetric(name=metric, value=metrics[metric]) if is_known else None}
    return row.model_copy(update=updates)


def _is_wanted(act: ActView, wanted: RunFilter) -> bool:
    words = f"{act.user} {act.details} {act.refused}".lower()
    return wanted.text.lower() in words and (not wanted.user or act.user in wanted.user)


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
