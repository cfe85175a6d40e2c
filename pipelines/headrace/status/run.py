"""State of runs: what each is, its progress, result, cost, and why it failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder, TrialFolder
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.base import from_json
from headrace.record import Record
from headrace.runs.costs import HOUR_S, Cost, known_cost
from headrace.runs.names import named
from headrace.runs.on_disk import removal_of
from headrace.runs.owners import owner_is_gone
from headrace.runs.planned_steps import run_metrics
from headrace.runs.prediction import BETWEEN, Ahead, Prediction
from headrace.runs.suites import best_point
from headrace.states import LeaseState, Removal, StepState
from headrace.status.step import FailedAttempt, StepView, step_views
from headrace.status.traits import RunTraits, traits_of
from headrace.steps import mailbox
from headrace.suites.records import FOLD, PRUNED, SiteSummary, SuiteSummary

_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)
_USEFUL = (StepState.SUCCEEDED.value, PRUNED)
_OF_TRIAL = ("state", "started_at", "finished_at", "failure_class", "message")
_AS_ENTERED = (
    "run_id", "user", "overrides", "dataset", "seed", "tags", "note", "is_starred", "owner",
    "folder", "state", "created_at", "finished_at",
)  # fmt: skip


class MainMetric(Record):
    """The main metric of a run: its name and value."""

    name: str
    value: float
    std: float | None = None
    """Standard deviation, if it is the mean of the folds of a cross-validation."""


class Trials(Record):
    """The trials of a suite by state."""

    total: int
    """Trials so far; with a sampler also the trials that it will propose."""
    counts: dict[str, int]
    """Trials by state; `pruned` is a state here."""
    ended: int
    useless: int
    """Ended trials that neither succeeded nor were pruned."""
    best: int | None
    """Number of the best trial; null for folds, several objectives, or before any value."""

    @classmethod
    def of(cls, total: int, counts: Mapping[str, int], best: int | None) -> Trials:
        """Return trials by state, at least `total` in all."""
        ended = sum(count for name, count in counts.items() if name not in _OPEN)
        return cls(
            total=max(total, sum(counts.values())),
            counts={name: count for name, count in counts.items() if count},
            ended=ended,
            useless=ended - sum(counts.get(name, 0) for name in _USEFUL),
            best=best,
        )


_CLOSED: Mapping[str, object] = {
    "state": "closed", "why": "", "planned": 0, "running": 0, "assigned": 0, "eta_s": None,
}  # fmt: skip
"""What is true of each site of a suite that has ended."""


class RunView(Record):
    """A run at one moment; null: unknown."""

    run_id: str
    kind: str = "train"
    recipe: str
    site: str
    overrides: tuple[str, ...] = ()
    """What differs from its recipe: `key=value`."""
    dataset: str = ""
    """Name of its dataset; empty without one."""
    seed: int | None = None
    user: str = ""
    """The requester, by the name of the Unix account; empty if the ledger does not know it."""
    tags: tuple[str, ...] = ()
    note: str = ""
    is_starred: bool = False
    owner: str = ""
    """Process or DAG run that drives it."""
    folder: str
    state: StepState
    step: str = ""
    """The current step, or the last one; empty before the first."""
    progress: float | None = None
    """Share of the step that is done, of a suite the share of its trials, 0 to 1."""
    created_at: float
    """When the run was requested, seconds since the epoch."""
    finished_at: float | None = None
    """When it ended; null before its end."""
    elapsed_s: float
    eta_s: float | None = None
    """Seconds until its end."""
    step_eta_s: float | None = None
    """Seconds until the end of the current step, at its present rate."""
    metric: MainMetric | None = None
    """The main metric; of a suite its best value, of a cross-validation the mean of the folds."""
    cost: Cost | None = None
    """What its machines have cost so far; null if nothing records it."""
    why: str = ""
    """Why it failed; empty if it did not."""
    failure: FailedAttempt | None = None
    """The attempt that failed; null also if the run failed because it got no lease."""
    is_orphan: bool = False
    """Whether it is abandoned: its process, on this machine, has ended before the run."""
    trials: Trials | None = None
    paused: bool = False
    """Whether it is a suite that starts no more trials at present."""
    sites: tuple[SiteSummary, ...] = ()
    """Each site of a suite over several; empty: only `site`."""
    own_data: bool = False
    """Whether it has no dataset, so that nothing is packed or staged."""
    damage: str = ""
    """Why more is unknown: a file cannot be read; else empty."""
    num_bytes: int | None = None
    """Bytes that it takes on disk, with its logs; null before its end."""
    removed: Removal | None = None
    """What is gone of its files; null if nothing is."""
    metrics: dict[str, float] = {}
    """All metrics, of a suite those of its best trial; left out on pages."""

    @property
    def is_interrupted(self) -> bool:
        """Whether it is a trial that has not ended, of a suite that has."""
        return not self.state.is_final and self.finished_at is not None

    @property
    def goes_on(self) -> bool:
        """Whether the run has not ended, and is not abandoned or interrupted."""
        return not (self.state.is_final or self.is_orphan or self.is_interrupted)


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """Rows of the ledger about a run."""

    run: RunRecord
    attempts: Sequence[AttemptRecord]
    """At its steps, in the order of their requests."""
    leases: Sequence[LeaseRecord]
    """The newest first."""
    machines: Sequence[MachineRecord]
    trials: Mapping[StepState, int]
    """Trials of a suite by state."""
    removed: Removal | None
    """Removal of the run, or of the trial's suite."""
    trial: TrialRecord | None = None
    """The trial, if this is one."""

    @classmethod
    def named(cls, name: str | None) -> RunRows:
        """Return the rows of a run, or of a trial as a run of one step in its suite's leases."""
        found = named(name)
        trial, (rows,) = found.trial, cls.of([found.record])
        if trial is None:
            return rows
        run = replace(
            found.record, run_id=found.name, folder=str(found.folder.path), state=trial.state,
            site_name=trial.site or found.record.site_name,
            created_at=trial.started_at or trial.created_at,
            finished_at=trial.finished_at or found.record.finished_at,
            overrides=tuple(f"{key}={from_json(each)}" for key, each in trial.values.items()),
            seed=trial.values.get("seed", found.record.seed),
            outputs={"train": {"metrics": trial.metrics}},
        )  # fmt: skip
        attempts = [_attempt(run, trial, at) for at in range(1, trial.attempts + 1)]
        return replace(rows, run=run, attempts=attempts, machines=(), trials={}, trial=trial)

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> tuple[RunRows, ...]:
        """Query the ledger, once for each table."""
        ledger, run_ids = open_ledger(), [record.run_id for record in records]
        attempts, leases = ledger.attempts_of(run_ids), ledger.leases_of(run_ids)
        machines, trials = ledger.machines_of(run_ids), ledger.trials_counted(run_ids)
        return tuple(
            cls(
                run=record,
                attempts=attempts.get(record.run_id, ()),
                leases=leases.get(record.run_id, ()),
                machines=machines.get(record.run_id, ()),
                trials=trials.get(record.run_id, {}),
                removed=removal_of(record),
            )
            for record in records
        )

    def steps(self, *, whole: bool) -> tuple[StepView, ...]:
        """Return the steps that have begun; see `step_views`."""
        return step_views(self.attempts, self.folders(), whole=whole)

    def folders(self) -> dict[str, StepFolder]:
        """Return the folders of submitted attempts, by their keys."""
        places: dict[str, LeaseFolder | TrialFolder] = {"": TrialFolder(Path(self.run.folder))}
        places |= {row.lease_id: LeaseFolder(Path(row.folder)) for row in self.leases}
        submitted = ((row, row.number) for row in self.attempts if row.number is not None)
        return {row.key: places[row.lease_id].step(number) for row, number in submitted}

    def cost(self, now: float) -> Cost | None:
        """Return what its machines have cost; None if nothing records it."""
        if self.trial is not None and self.trial.usd is not None:
            used = open_ledger().usage(self.trial.run_id, trial=self.trial.number)
            hours = sum(row.node_s for row in used) / HOUR_S
            return Cost(usd=self.trial.usd, hours=hours, unpriced=0, estimated=0, lines=())
        return known_cost(self.machines, self.leases, now)


def _attempt(run: RunRecord, trial: TrialRecord, number: int) -> AttemptRecord:
    """Return an attempt at a trial as one at training, by its result, else by the trial's row."""
    folder, is_last = TrialFolder(Path(run.folder)).step(number), number == trial.attempts
    result, is_stopped = mailbox.outcome(folder), trial.finished_at is not None
    if result is None and not (is_last and trial.state.is_final is is_stopped):
        result = mailbox.lost(folder, "", trial.finished_at)
    known = {name: getattr(trial, name) for name in _OF_TRIAL}
    return AttemptRecord(
        run_id=run.run_id, step="train", attempt=number, kind="trial", lease_id="", number=number,
        key=f"{run.run_id}/{number}", created_at=run.created_at,
        **(result.columns if result else known),
    )  # fmt: skip


def run_views(records: Sequence[RunRecord]) -> tuple[RunView, ...]:
    """Return the state of runs; files are read only of those that have not ended."""
    now = time.time()
    views = [view_of(rows, now) for rows in RunRows.of(records)]
    best = {each.run_id: each.trials.best for each in views if each.trials and each.trials.best}
    of_trials = open_ledger().metrics_of_trials(best)
    return tuple(
        each.model_copy(update={"metrics": {**each.metrics, **of_trials.get(each.run_id, {})}})
        for each in views
    )


def view_of(rows: RunRows, now: float) -> RunView:
    """Return the state of a run or trial by its rows, and its files unless it has ended."""
    row = by_ledger(rows, now)
    if row.state.is_final:
        return row
    try:
        steps = rows.steps(whole=False)
        updates = under_way(row, steps)
        if steps and not row.is_orphan and not row.paused:
            with suppress(StepError):  # the run's page shows the error
                ahead = ahead_of(RunFolder(Path(row.folder)), steps)
                updates["eta_s"] = ahead.eta_s if ahead else None
    except OSError as error:  # another user's run, on a team's page
        updates = {"damage": f"Its files cannot be read: {error.strerror}"}
    return row.model_copy(update=updates)


def by_ledger(rows: RunRows, now: float) -> RunView:
    """Return a run by its rows, its traits, and the summary of a suite."""
    record, traits, attempts = rows.run, traits_of(rows.run.folder), rows.attempts
    kind = "trial" if rows.trial else record.kind or traits.kind
    summary, damage = summary_of(record) if kind == "suite" else (None, "")
    failed = why_failed(record, attempts)
    why = failed.message or failed.state.value if failed else ""
    metric = _best(record, traits, summary) if summary else main_metric(record)
    return RunView(
        **{name: getattr(record, name) for name in _AS_ENTERED},
        kind=kind,
        recipe=record.recipe_name,
        site=record.site_name,
        step=attempts[-1].step if attempts else "",
        elapsed_s=(record.finished_at or now) - record.created_at,
        metric=metric,
        metrics=run_metrics(record.outputs) | ({metric.name: metric.value} if metric else {}),
        cost=rows.cost(now),
        why=why or why_no_lease(rows),
        failure=FailedAttempt.model_validate(failed) if failed else None,
        is_orphan=record.finished_at is None and owner_is_gone(record.owner),
        trials=_trials(traits, summary, rows.trials) if kind == "suite" else None,
        paused=summary is not None and summary.paused and not record.state.is_final,
        sites=summary.sites if summary else (),
        own_data=traits.own_data,
        damage=damage,
        num_bytes=None if record.sizes is None else sum(record.sizes.values()),
        removed=rows.removed,
    )


def under_way(row: RunView, steps: Sequence[StepView]) -> dict[str, object]:
    """Return what the steps of a running run add: fields of `RunView` by name."""
    if not steps:
        return {}
    now = steps[-1]
    updates: dict[str, object] = {
        "progress": now.progress,
        "step_eta_s": None if row.is_orphan or row.paused else now.eta_s,
    }
    if row.trials is not None and row.trials.total:
        if now.name == "suite":
            updates["progress"] = row.trials.ended / row.trials.total
    elif now.name == "train" and now.status is not None:
        updates["metrics"] = now.status.metrics
        updates["metric"] = main_of(now.status.metrics, traits_of(row.folder).main)
    return updates


def ahead_of(folder: RunFolder, steps: Sequence[StepView], *, goes_on: bool = True) -> Ahead | None:
    """Return a run's prediction, and what is left of a running run; None if that is unknown.

    Raises:
        StepError: The file of the prediction is damaged.
    """
    prediction = read_record(folder.prediction, Prediction)
    if prediction is None or not goes_on:
        return None if prediction is None else Ahead.of(prediction)
    from headrace.runs.planning import planner  # not needed for ended runs, most of a list

    names = (*(part.name for part in prediction.parts), *prediction.unknown)
    known = {step.name for step in steps} | {BETWEEN}
    waiting = (StepView(name=name, state=None) for name in names if name not in known)
    all_steps = [*steps, *waiting]
    return inform(folder, "time left", lambda: planner().ahead(folder, all_steps), Ahead)


def why_failed(record: RunRecord, attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """Return the attempt by which a run ended without success; None if there is none."""
    if not record.state.is_final or record.state is StepState.SUCCEEDED or not attempts:
        return None
    return None if attempts[-1].state is StepState.SUCCEEDED else attempts[-1]


def why_no_lease(rows: RunRows) -> str:
    """Return why a run failed that got no lease for its next step; empty if a step failed."""
    record, last = rows.run, next(iter(rows.leases), None)
    is_well = not record.state.is_final or record.state is StepState.SUCCEEDED
    if is_well or last is None or why_failed(record, rows.attempts):
        return ""
    return last.why_ended if last.state is LeaseState.FAILED else ""


def main_metric(record: RunRecord) -> MainMetric | None:
    """Return what training monitors, else evaluation's first metric by name, else the loss.

    None for a run without any of these, as one that only packs.
    """
    outputs = {
        step: each if isinstance(each, dict) else {} for step, each in record.outputs.items()
    }
    evaluated = run_metrics({"evaluate": outputs.get("evaluate", {})})
    return main_of(run_metrics(outputs), traits_of(record.folder).main, next(iter(evaluated), None))


def main_of(metrics: Mapping[str, float], *names: str | None) -> MainMetric | None:
    """Return the first of some metrics that exists, then the loss of validation, of training."""
    for name in (*names, "val_loss", "loss"):
        if name is not None and name in metrics:
            return MainMetric(name=name, value=metrics[name])
    return None


def summary_of(record: RunRecord) -> tuple[SuiteSummary | None, str]:
    """Return a suite's summary, or why it is unknown; of an ended suite it is read once.

    The sites of an ended suite are closed, and no trial runs: its driver may have been stopped
    before it wrote that.
    """
    read = _read_summary if record.finished_at is not None else _read_summary.__wrapped__
    return read(record.folder, record.finished_at)


@lru_cache(maxsize=1000)
def _read_summary(folder: str, finished_at: float | None) -> tuple[SuiteSummary | None, str]:
    file = RunFolder(Path(folder)).summary
    try:
        found = read_record(file, SuiteSummary)
    except StepError:
        return None, f"its {file.name} is damaged"
    except OSError as error:
        return None, f"its {file.name} cannot be read: {error.strerror}"
    if found is not None and finished_at is not None:
        sites = tuple(each.model_copy(update=_CLOSED) for each in found.sites)
        counts = Counter(found.counts)
        counts[StepState.QUEUED.value] += counts.pop(StepState.RUNNING.value, 0)
        closed = {"sites": sites, "counts": +counts, "running": ()}
        found = found.model_copy(update=closed)
    return found, ""


def _trials(
    traits: RunTraits, summary: SuiteSummary | None, entered: Mapping[StepState, int]
) -> Trials:
    if summary is None:
        return Trials.of(0, {state.value: count for state, count in entered.items()}, None)
    return Trials.of(
        summary.total, summary.counts, None if FOLD in traits.repeats else summary.best
    )


def _best(record: RunRecord, traits: RunTraits, summary: SuiteSummary) -> MainMetric | None:
    """Return the best trial's value; of a cross-validation, by one more query, the folds' mean."""
    name = traits.objectives[0].metric if traits.objectives else ""
    if FOLD in traits.repeats:
        point = best_point(record.run_id, traits.objectives)
        if point is None or point.spread is None:
            return None
        return MainMetric(name=name, value=point.spread.mean, std=point.spread.std)
    if summary.best_value is None or not name:
        return None
    return MainMetric(name=name, value=summary.best_value)
