"""What a name stands for: a run by its id or `latest`, a trial by `SUITE:NUMBER`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UnknownNameError, UserError
from headrace.files.layout import RunFolder, TrialFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import MAX_TRIALS
from headrace.runs.suites import is_suite, sought_by
from headrace.runs.trials import note_trials
from headrace.suites.analysis import are_folds, finished, front, ranked

LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A run, or a trial of a suite."""

    record: RunRecord
    """The run; of a trial its suite."""
    trial: TrialRecord | None = None
    why: str = ""
    """Why this trial, if a suite was named; else empty."""

    @property
    def name(self) -> str:
        """The run's id, or `SUITE:NUMBER`."""
        return f"{self.record.run_id}:{self.trial.number}" if self.trial else self.record.run_id

    @property
    def folder(self) -> RunFolder:
        """Its folder."""
        return self.trial_folder or RunFolder(Path(self.record.folder))

    @property
    def trial_folder(self) -> TrialFolder | None:
        """The trial's folder; None for a run."""
        suite = RunFolder(Path(self.record.folder))
        return suite.trial(self.trial.number) if self.trial else None


def named(name: str | None = None) -> Named:
    """Return the run or trial of a name; None and `latest`: the newest run.

    Raises:
        UnknownNameError: It does not exist, or there are no runs.
    """
    run_id, colon, number = (name or LATEST).partition(":")
    newest = open_ledger().runs(limit=1) if run_id == LATEST else ()
    if run_id == LATEST and not newest:
        raise UnknownNameError("There are no runs yet", "Start one: headrace run digits")
    record = newest[0] if newest else open_ledger().run(run_id)
    if not colon:
        return Named(record=record)
    if not is_suite(record):
        what = f"Run {record.run_id} has no trials, so '{name}' names nothing"
        raise UnknownNameError(what, f"Name the run: {record.run_id}.")
    note_trials(RunFolder(Path(record.folder)))
    wanted = int(number) if number.isdecimal() and len(number) <= len(str(MAX_TRIALS)) else 0
    trial = open_ledger().trials_numbered(record.run_id, [wanted]).get(wanted)
    if trial is None:
        what = f"Suite {record.run_id} has no trial '{number}'"
        raise UnknownNameError(what, _trials_words(record))
    return Named(record=record, trial=trial)


def with_model(name: str | None = None) -> Named:
    """Return what `named` does; of a suite its best trial."""
    found = named(name)
    return best_trial(found.record) if found.trial is None and is_suite(found.record) else found


def with_checkpoint(name: str) -> tuple[Named, str]:
    """Return the run or trial of `RUN[:CHECKPOINT]` or `SUITE[:NUMBER[:CHECKPOINT]]`, and which.

    A suite has no checkpoints of its own: without a number its best trial is meant.
    """
    run_id, _, rest = name.partition(":")
    found, (number, _, checkpoint) = named(run_id), rest.partition(":")
    if not is_suite(found.record):
        return found, rest
    if number.isdecimal():
        return named(f"{run_id}:{number}"), checkpoint
    return best_trial(found.record), rest


def best_trial(suite: RunRecord) -> Named:
    """Return the best trial of a suite by its objective, and why.

    Raises:
        UserError: The suite has no best trial: no objective or several, folds, or no trial that
            has succeeded with a value.
    """
    note_trials(RunFolder(Path(suite.folder)))
    objectives = sought_by(RunFolder(Path(suite.folder))).objectives
    ended = finished(open_ledger().trials(suite.run_id, limit=MAX_TRIALS))
    why_not = ""
    if not objectives:
        why_not = "it has no objective, set suite.objectives or trainer.monitor"
    elif not ended:
        why_not = f"none has ended with a value of {objectives[0].metric}"
    elif len(objectives) > 1:
        on_front = ", ".join(map(str, front(ended, objectives))) or "none"
        why_not = f"it has several objectives; not beaten in all of them: {on_front}"
    elif are_folds(ended):
        why_not = "they are folds of a cross-validation, of which only the mean counts"
    if why_not:
        raise UserError(f"Suite {suite.run_id} has no best trial: {why_not}", _trials_words(suite))
    best, (metric, mode) = ranked(ended, objectives)[0], (objectives[0].metric, objectives[0].mode)
    least = "least" if mode == "min" else "greatest"
    why = (
        f"trial {best.number}, {best.name}: {least} {metric}, {best.objective:.5g}, of {len(ended)}"
    )
    return Named(record=suite, trial=best, why=why)


def _trials_words(suite: RunRecord) -> str:
    rows = open_ledger().trials(suite.run_id, order="-number", limit=1)
    there = f"{suite.run_id}:1 to {suite.run_id}:{rows[0].number}" if rows else "none yet"
    return f"Its trials: {there}; `headrace suite show {suite.run_id}` lists them."
