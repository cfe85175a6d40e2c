"""How runs stand: what each is, how far, how good, what it cost, why it failed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from headrace.errors import HeadraceError, StepError
from headrace.files.atomic import is_there, read_bytes, read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.recipe.suite import Objective
from headrace.record import Record
from headrace.runs.costs import Cost, cost_of, has_price
from headrace.runs.owners import owner_is_gone, user_of
from headrace.runs.planned_steps import run_metrics
from headrace.runs.prediction import BETWEEN, Ahead, Prediction
from headrace.runs.suites import Sought, best_point, sought_by
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.step import StepView, step_views
from headrace.suites.records import FOLD, PRUNED, SuiteSummary

_MOST = 10_000
_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)
_USEFUL = (StepState.SUCCEEDED.value, PRUNED)


class Facts(Record):
    """What a run is, from its beginning on: read once a process."""

    kind: str = "train"
    monitor: str | None = None
    """`trainer.monitor` of its recipe."""
    monitor_mode: str = "min"
    """Whether lower values of that are better, `min`, or higher ones, `max`."""
    own_data: bool = False
    """Whether what it trains brings its own data: nothing is packed or staged."""
    objectives: tuple[Objective, ...] = ()
    """Of a suite: what it seeks."""
    log_keys: tuple[str, ...] = ()
    """Of a suite: keys that it samples on a logarithmic scale."""
    is_folded: bool = False
    """Whether its trials are folds of a cross-validation."""


class Headline(Record):
    """A figure by its name."""

    name: str
    value: float
    std: float | None = None
    """Standard deviation, where it is the mean of the folds of a cross-validation."""


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

    @classmethod
    def of(cls, total: int, counts: Mapping[str, int], best: int | None) -> Trials:
        """Trials by state, of at least so many in all."""
        ended = sum(count for name, count in counts.items() if name not in _OPEN)
        return cls(
            total=max(total, sum(counts.values())),
            counts={name: count for name, count in counts.items() if count},
            ended=ended,
            useless=ended - sum(counts.get(name, 0) for name in _USEFUL),
            best=best,
        )


class FailedAttempt(Record):
    """The attempt by which a run ended without success."""

    model_config = ConfigDict(from_attributes=True)

    step: str
    attempt: int
    state: StepState
    failure_class: FailureClass | None
    message: str


class RunView(Record):
    """A run at one moment; null is what is not known."""

    run_id: str
    kind: str = "train"
    recipe: str
    site: str
    user: str = ""
    owner: str = ""
    """Process or DAG run that goes on with it."""
    folder: str
    state: StepState
    step: str = ""
    """The step under way, or the last one; empty before the first."""
    progress: float | None = None
    """Share of that step that is done, of a suite of its trials, 0 to 1."""
    created_at: float
    """When it was asked for, seconds since the epoch."""
    finished_at: float | None = None
    """When it ended; null while it goes on."""
    elapsed_s: float
    eta_s: float | None = None
    """Seconds until its end."""
    step_eta_s: float | None = None
    """Seconds until the end of the step under way, as fast as it goes."""
    metric: Headline | None = None
    """The main one; of a suite the best value, of a cross-validation the mean of the folds."""
    cost: Cost | None = None
    """What its machines have cost so far; null where nobody counts them."""
    why: str = ""
    """Why it failed; empty when it did not."""
    failure: FailedAttempt | None = None
    """The attempt that tells why; null also where it failed as it got no lease."""
    is_orphan: bool = False
    """Whether nobody goes on with it: its process, on this machine, has ended before the run."""
    trials: Trials | None = None
    own_data: bool = False
    """Whether it has no dataset, so that nothing is packed or staged."""
    damage: str = ""
    """Why no more is known: a file cannot be read; else empty."""

    @property
    def goes_on(self) -> bool:
        """Whether somebody still works on it."""
        return not self.state.is_final and not self.is_orphan


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

    def steps(self, run_id: str, *, whole: bool) -> tuple[StepView, ...]:
        """The steps of a run that have begun; see `step_views`."""
        folders = {row.lease_id: LeaseFolder(Path(row.folder)) for row in self.leases_of(run_id)}
        return step_views(self.attempts_of(run_id), folders, whole=whole)

    def attempts_of(self, run_id: str) -> Sequence[AttemptRecord]:
        """Attempts at the steps of a run, as they were asked for."""
        return self.attempts.get(run_id, ())

    def leases_of(self, run_id: str) -> Sequence[LeaseRecord]:
        """Leases of a run, the newest first."""
        return self.leases.get(run_id, ())

    def user_of(self, record: RunRecord) -> str:
        """Who asked for a run; its folder tells as long as it has no lease."""
        told = (lease.owner for lease in self.leases_of(record.run_id))
        return next(filter(None, told), None) or _user(record.folder, record.owner)

    def cost(self, run_id: str, now: float) -> Cost | None:
        """What the machines of a run have cost; None where nobody counts them."""
        machines = [row for row in self.machines.get(run_id, ()) if has_price(row)]
        roles = {lease.lease_id: lease.role for lease in self.leases_of(run_id)}
        return cost_of(machines, now, roles) if machines else None


def run_views(records: Sequence[RunRecord]) -> tuple[RunView, ...]:
    """How runs stand; files are read of those that go on."""
    books, now = Books.of(records), time.time()
    return tuple(_view(record, books, now) for record in records)


def _view(record: RunRecord, books: Books, now: float) -> RunView:
    row = by_ledger(record, books, now)
    if record.state.is_final:
        return row
    try:
        steps = books.steps(record.run_id, whole=False)
        told = under_way(row, record, steps)
        if not row.is_orphan and steps:
            told["eta_s"] = _eta_s(record, steps)
    except OSError as error:  # of another user's run, on the page of a team
        return row.model_copy(update={"damage": f"Its files cannot be read: {error.strerror}"})
    return row.model_copy(update=told)


def by_ledger(record: RunRecord, books: Books, now: float) -> RunView:
    """A run by its rows, what it is from its beginning on, and the summary of a suite."""
    facts, run_id = facts_of(record), record.run_id
    attempts = books.attempts_of(run_id)
    summary, damage = _summary(record) if facts.kind == "suite" else (None, "")
    failed = why_failed(record, attempts)
    why = failed.message or failed.state.value if failed else ""
    return RunView(
        run_id=run_id,
        kind=facts.kind,
        recipe=record.recipe_name,
        site=record.site_name,
        user=books.user_of(record),
        owner=record.owner,
        folder=record.folder,
        state=record.state,
        step=attempts[-1].step if attempts else "",
        created_at=record.created_at,
        finished_at=record.finished_at,
        elapsed_s=(record.finished_at or now) - record.created_at,
        metric=_best(record, facts, summary) if summary else headline(record),
        cost=books.cost(run_id, now),
        why=why or why_no_lease(record, attempts, books.leases_of(run_id)),
        failure=FailedAttempt.model_validate(failed) if failed else None,
        is_orphan=not record.state.is_final and owner_is_gone(record.owner),
        trials=_trials(facts, summary, books.trials.get(run_id, {})),
        own_data=facts.own_data,
        damage=damage,
    )


def under_way(row: RunView, record: RunRecord, steps: Sequence[StepView]) -> dict[str, object]:
    """What the steps of a run that goes on tell of it besides."""
    if not steps:
        return {}
    now = steps[-1]
    told: dict[str, object] = {
        "progress": now.progress,
        "step_eta_s": None if row.is_orphan else now.eta_s,
    }
    if row.trials is not None and row.trials.total:
        if now.name == "suite":
            told["progress"] = row.trials.ended / row.trials.total
    elif now.name == "train" and now.status is not None:
        told["metric"] = main_of(now.status.metrics, facts_of(record).monitor)
    return told


def _eta_s(record: RunRecord, begun: Sequence[StepView]) -> float | None:
    """When a run ends, by the forecast of its steps; None if there is none."""
    folder = RunFolder(Path(record.folder))
    try:
        prediction = read_record(folder.prediction, Prediction)
        if prediction is None:
            return None
        names = (*(part.name for part in prediction.parts), *prediction.unknown)
        known = {step.name for step in begun} | {BETWEEN}
        waiting = [StepView(name=name, state=None) for name in names if name not in known]
    except StepError:  # the page of the run tells what cannot be read
        return None
    ahead = ahead_of(folder, [*begun, *waiting])
    return None if ahead is None else ahead.eta_s


def ahead_of(folder: RunFolder, steps: Sequence[StepView]) -> Ahead | None:
    """Return what a run that goes on is expected to take; None if that is unknown."""
    from headrace.runs.planning import planner  # most runs of a list have ended: it is not needed

    return inform(folder, "time left", lambda: planner().ahead(folder, steps), Ahead)


def why_failed(record: RunRecord, attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """The attempt by which a run ended without success; None when there is none."""
    if not record.state.is_final or record.state is StepState.SUCCEEDED or not attempts:
        return None
    return None if attempts[-1].state is StepState.SUCCEEDED else attempts[-1]


def why_no_lease(
    record: RunRecord, attempts: Sequence[AttemptRecord], leases: Sequence[LeaseRecord]
) -> str:
    """Why a run failed that got no lease for its next step; empty when a step tells why.

    Args:
        record: The run.
        attempts: All at its steps, as they were asked for.
        leases: Its leases, the newest first.
    """
    is_well = not record.state.is_final or record.state is StepState.SUCCEEDED
    if is_well or not leases or why_failed(record, attempts):
        return ""
    return leases[0].why_ended if leases[0].state is LeaseState.FAILED else ""


def facts_of(record: RunRecord) -> Facts:
    """What a run is, as far as its folder tells: it may be gone or damaged."""
    try:
        return _facts(record.folder)
    except (ValueError, OSError, HeadraceError):  # the list shows the run nonetheless
        return Facts()


@lru_cache(maxsize=_MOST)
def _user(path: str, owner: str) -> str:
    return user_of(RunFolder(Path(path)), owner)


@lru_cache(maxsize=_MOST)
def _facts(path: str) -> Facts:
    folder = RunFolder(Path(path))
    request, recipe = _json(folder.request), _json(folder.recipe)
    trainer, suite = (_part(recipe.get(name)) for name in ("trainer", "suite"))
    monitor = trainer.get("monitor")
    kind = "suite" if is_there(folder.source) else request.get("kind")
    sought = sought_by(folder) if kind == "suite" else Sought()
    return Facts(
        kind=kind if isinstance(kind, str) else "train",
        monitor=monitor if isinstance(monitor, str) else None,
        monitor_mode=str(trainer.get("monitor_mode", "min")),
        own_data=kind in ("train", "suite") and "dataset" in recipe and recipe["dataset"] is None,
        objectives=sought.objectives,
        log_keys=sought.log_keys,
        is_folded=suite.get("folds") is True or FOLD in _part(suite.get("grid")),
    )


def _part(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    content = None
    with suppress(RecursionError):
        content = json.loads(read_bytes(file) or b"")
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no record")  # noqa: TRY004  as of what is no JSON
    return content


def headline(record: RunRecord) -> Headline | None:
    """What training monitors, else evaluation's first metric by name, else the loss.

    None for a run that gave none of these, as one that only packs.
    """
    outputs = {
        step: each if isinstance(each, dict) else {} for step, each in record.outputs.items()
    }
    evaluated = run_metrics({"evaluate": outputs.get("evaluate", {})})
    return main_of(run_metrics(outputs), facts_of(record).monitor, next(iter(evaluated), None))


def main_of(metrics: Mapping[str, float], *names: str | None) -> Headline | None:
    """The first of some figures that is there, then the loss of validation, of training."""
    for name in (*names, "val_loss", "loss"):
        if name is not None and name in metrics:
            return Headline(name=name, value=metrics[name])
    return None


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
    except StepError:  # `headrace suite list` and the page of the suite tell what is wrong
        return None, f"its {file.name} is damaged"
    except OSError as error:
        return None, f"its {file.name} cannot be read: {error.strerror}"


def _trials(
    facts: Facts, summary: SuiteSummary | None, entered: Mapping[StepState, int]
) -> Trials | None:
    if facts.kind != "suite":
        return None
    if summary is None:
        return Trials.of(0, {state.value: count for state, count in entered.items()}, None)
    return Trials.of(summary.total, summary.counts, None if facts.is_folded else summary.best)


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
