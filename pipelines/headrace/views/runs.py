"""The list of runs: what each is, how far, how good, what it cost; one query for each table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ConfigDict

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.causes import why_failed, why_no_lease
from headrace.runs.costs import cost_of, has_price
from headrace.runs.foresight import BETWEEN, Prediction, ahead_of
from headrace.runs.overview import StepView, step_view, with_failures
from headrace.runs.provenance import owner_is_gone
from headrace.runs.suites import best_point
from headrace.states import FailureClass, StepState
from headrace.suites.records import PRUNED, SuiteSummary
from headrace.views.acts import ActRow, refused_rows
from headrace.views.facts import Facts, Kind, facts_of
from headrace.views.headline import Headline, headline, main_of
from headrace.views.steps import share_of


class Trials(Record):
    """How the trials of a suite stand."""

    total: int
    """Trials so far; with a sampler also those that it will propose."""
    counts: dict[str, int]
    """Trials by state; `pruned` is one."""
    ended: int
    useless: int
    """Those of them that neither succeeded nor were pruned."""
    best: int | None
    """Number of the best one; null of folds, of several objectives, or before one has a value."""


class Failure(Record):
    """The attempt by which a run ended without success."""

    model_config = ConfigDict(from_attributes=True)

    step: str
    attempt: int
    state: StepState
    failure_class: FailureClass | None
    message: str


class RunRow(Record):
    """A run in a list; null is what is not known."""

    run_id: str
    kind: Kind
    recipe: str
    site: str
    user: str
    state: StepState
    step: str
    """The step under way, or the last one; empty before the first."""
    progress: float | None
    """Share of that step that is done, of a suite of its trials, 0 to 1."""
    created_at: float
    """When it was asked for, seconds since the epoch."""
    elapsed_s: float
    eta_s: float | None
    """Seconds until its end."""
    step_eta_s: float | None = None
    """Seconds until the end of the step under way, as fast as it goes."""
    metric: Headline | None
    """The main one; of a suite the best value, of a cross-validation the mean of the folds."""
    usd: float | None
    """What its machines have cost, as far as prices are known."""
    num_unpriced: int = 0
    """Machines whose price is not known: `usd` does not have them."""
    why: str
    """Why it failed, or no more is known of it; empty when neither is so."""
    failure: Failure | None = None
    is_orphan: bool
    """Whether nobody goes on with it, though it has not ended."""
    trials: Trials | None
    own_data: bool
    """Whether it has no dataset, so that nothing is packed or staged."""


class RunsPage(Record):
    """Runs, the newest first."""

    now: float
    rows: tuple[RunRow, ...]
    refused: tuple[ActRow, ...] = ()
    """Requests in Airflow, no older than the rows, that got no run."""


@dataclass(frozen=True, kw_only=True)
class Books:
    """What the ledger knows of some runs, by their ids."""

    attempts: Mapping[str, Sequence[AttemptRecord]]
    leases: Mapping[str, Sequence[LeaseRecord]]
    machines: Mapping[str, Sequence[MachineRecord]]
    trials: Mapping[str, Mapping[StepState, int]]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> Books:
        """Ask the ledger, once for each table."""
        ledger, run_ids = open_ledger(), [record.run_id for record in records]
        return cls(
            attempts=ledger.attempts_of(run_ids),
            leases=ledger.leases_of(run_ids),
            machines=ledger.machines_of(run_ids),
            trials=ledger.trials_counted(run_ids),
        )


def runs_page(
    limit: int = 200,
    states: Sequence[StepState] = (),
    text: str = "",
    sites: Sites = None,
    asker: str = "",
) -> RunsPage:
    """The newest runs, those in some states or with a text in their id, recipe or site.

    Among those that failed are the requests of a user that were refused, or of all users.
    """
    records = open_ledger().runs(limit, states, text, sites=sites)
    since = records[-1].created_at if len(records) == limit else 0.0
    is_asked = not states or StepState.FAILED in states
    refused = refused_rows(asker, limit, since, text) if is_asked else ()
    return RunsPage(now=time.time(), rows=run_rows(records), refused=refused)


def run_rows(records: Sequence[RunRecord]) -> tuple[RunRow, ...]:
    """Rows of runs; files are read of those that go on."""
    books, now = Books.of(records), time.time()
    return tuple(_row(record, books, now) for record in records)


def _row(record: RunRecord, books: Books, now: float) -> RunRow:
    facts, run_id = facts_of(record), record.run_id
    attempts, leases = books.attempts.get(run_id, ()), books.leases.get(run_id, ())
    is_orphan = not record.state.is_final and owner_is_gone(record.owner)
    summary, damage = _summary(record) if facts.kind == "suite" else (None, "")
    machines = [row for row in books.machines.get(run_id, ()) if has_price(row)]
    cost = cost_of(machines, now)
    failed = why_failed(record, attempts)
    row = RunRow(
        run_id=run_id,
        kind=facts.kind,
        recipe=record.recipe_name,
        site=record.site_name,
        user=facts.user,
        state=record.state,
        step=attempts[-1].step if attempts else "",
        progress=None,
        created_at=record.created_at,
        elapsed_s=(record.finished_at or now) - record.created_at,
        eta_s=None,
        metric=_best(record, facts, summary) if summary else headline(record),
        usd=cost.usd if len(machines) > cost.unpriced else None,
        num_unpriced=cost.unpriced,
        why=_why(failed) or why_no_lease(record, attempts, leases) or damage,
        failure=Failure.model_validate(failed) if failed else None,
        is_orphan=is_orphan,
        trials=_trials(facts, summary, books.trials.get(run_id, {})),
        own_data=facts.own_data,
    )
    if record.state.is_final:
        return row
    try:
        return _under_way(row, record, attempts, leases)
    except OSError as error:  # of another user's run, on the page of a team
        return row.model_copy(update={"why": f"Its files cannot be read: {error.strerror}"})


def _under_way(
    row: RunRow,
    record: RunRecord,
    attempts: Sequence[AttemptRecord],
    leases: Sequence[LeaseRecord],
) -> RunRow:
    """The row of a run that goes on, with what the files of its steps tell."""
    folders = {lease.lease_id: LeaseFolder(Path(lease.folder)) for lease in leases}
    newest = {each.step: each for each in attempts}.values()
    begun = [
        with_failures(
            _ended(each) if each.state.is_final else step_view(each, folders[each.lease_id]),
            attempts,
        )
        for each in newest
    ]
    if not begun:
        return row
    now = begun[-1]
    told: dict[str, object] = {
        "progress": share_of(now),
        "eta_s": _eta_s(record, begun, row),
        "step_eta_s": now.status.eta_s if now.status and not row.is_orphan else None,
    }
    if row.trials is not None and row.trials.total:
        if now.name == "suite":
            told["progress"] = row.trials.ended / row.trials.total
    elif now.name == "train" and now.status is not None:
        told["metric"] = main_of(now.status.metrics, facts_of(record).monitor)
    return row.model_copy(update=told)


_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)
_USEFUL = (StepState.SUCCEEDED.value, PRUNED)


def _ended(row: AttemptRecord) -> StepView:
    took_s = row.finished_at - row.started_at if row.started_at and row.finished_at else None
    return StepView(name=row.step, state=row.state, attempt=row.attempt, elapsed_s=took_s)


def _eta_s(record: RunRecord, begun: Sequence[StepView], row: RunRow) -> float | None:
    """When a run ends, by what was foretold of its steps; None where nobody said."""
    if row.is_orphan:
        return None
    folder = RunFolder(Path(record.folder))
    try:
        prediction = read_record(folder.prediction, Prediction)
        if prediction is None:
            return None
        names = (*(part.name for part in prediction.parts), *prediction.unknown)
        known = {step.name for step in begun} | {BETWEEN}
        waiting = [StepView(name=name, state=None) for name in names if name not in known]
        ahead = ahead_of(folder, [*begun, *waiting], goes_on=True)
    except StepError:  # the page of the run tells what cannot be read
        return None
    return None if ahead is None else ahead.eta_s


def _why(failed: AttemptRecord | None) -> str:
    return "" if failed is None else failed.message or failed.state.value


def _summary(record: RunRecord) -> tuple[SuiteSummary | None, str]:
    """How a suite stands by its file, or why nobody knows; of an ended one it is read once."""
    if record.finished_at is not None:
        return _last_summary(record.folder, record.finished_at)
    return _read_summary(record.folder)


@lru_cache(maxsize=1000)
def _last_summary(folder: str, _finished_at: float) -> tuple[SuiteSummary | None, str]:
    return _read_summary(folder)


def _read_summary(folder: str) -> tuple[SuiteSummary | None, str]:
    file = RunFolder(Path(folder)).summary
    try:
        return read_record(file, SuiteSummary), ""
    except StepError:  # `headrace suite watch` and the page of the suite tell what is wrong
        return None, f"its {file.name} is damaged"
    except OSError as error:
        return None, f"its {file.name} cannot be read: {error.strerror}"


def _trials(
    facts: Facts, summary: SuiteSummary | None, entered: Mapping[StepState, int]
) -> Trials | None:
    if facts.kind != "suite":
        return None
    counts = {state.value: count for state, count in entered.items()}
    if summary is not None:
        counts = summary.counts
    ended = sum(count for name, count in counts.items() if name not in _OPEN)
    return Trials(
        total=max(summary.total if summary else 0, sum(counts.values())),
        counts={name: count for name, count in counts.items() if count},
        ended=ended,
        useless=ended - sum(counts.get(name, 0) for name in _USEFUL),
        best=None if summary is None or facts.is_folded else summary.best,
    )


def _best(record: RunRecord, facts: Facts, summary: SuiteSummary) -> Headline | None:
    """The value of the best trial; of a cross-validation, by one more query, the mean of folds."""
    name = facts.objectives[0].metric if facts.objectives else ""
    if facts.is_folded:
        point = best_point(record.run_id, facts.objectives)
        if point is None or point.spread is None:
            return None
        return Headline(name=name, value=point.spread.mean, std=point.spread.std)
    if summary.best_value is None or not name:
        return None
    return Headline(name=name, value=summary.best_value)
