"""What a name stands for: a run by its id or `latest`, a trial by `SUITE:NUMBER`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import UnknownNameError, UserError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.runs.on_disk import check_there
from headrace.runs.parts import part_key, suite_of_part
from headrace.runs.suites import is_suite, sought_by
from headrace.suites.records import FOLD

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Named:
    """A run, or a trial of a suite."""

    record: RunRecord
    """The run; of a trial its suite."""
    trial: TrialRecord | None = None

    @property
    def name(self) -> str:
        """The run's id, or `SUITE:NUMBER`."""
        return f"{self.record.run_id}:{self.trial.number}" if self.trial else self.record.run_id

    @property
    def folder(self) -> RunFolder:
        """Its folder."""
        run = RunFolder(Path(self.record.folder))
        return run.trial(self.trial.number) if self.trial else run

    @property
    def at_site(self) -> Named:
        """Of a trial of a suite over several sites: that of the part where it ran; else itself."""
        key = part_key(self.record.run_id, self.trial.site) if self.trial else ""
        part = open_ledger().run_by_key(key)
        return self if part is None else replace(self, record=part)


def named(name: str | None = None) -> Named:
    """Return the run or trial of a name; None and `latest`: the newest run.

    Raises:
        UnknownNameError: It does not exist, or there are no runs.
    """
    run_id, colon, number = (name or "latest").partition(":")
    newest = open_ledger().runs(limit=1) if run_id == "latest" else ()
    if run_id == "latest" and not newest:
        raise UnknownNameError("There are no runs yet", "Start one: headrace run digits")
    found = newest[0].run_id if newest else run_id
    record = open_ledger().run((suite_of_part(found) or found) if newest else found)
    if not colon:
        return Named(record=record)
    if not is_suite(record) or not re.fullmatch("[0-9]{1,9}", number):
        what = f"Run {record.run_id} has no trial '{number}'"
        raise UnknownNameError(what, f"Look at it: headrace status {record.run_id}")
    _enter_trials(RunFolder(Path(record.folder)))
    return Named(record=record, trial=open_ledger().trial(record.run_id, int(number)))


def there(name: str | None = None) -> Named:
    """Return a run or trial whose files are needed; see `named`.

    Raises:
        UnknownNameError: They were removed.
    """
    found = named(name)
    check_there(found.record, found.name)
    return found


def with_model(name: str, checkpoint: str = "") -> tuple[Named, str]:
    """Return the run or trial of `RUN[:CHECKPOINT]` or `SUITE[:NUMBER[:CHECKPOINT]]`, and which.

    A suite has no checkpoints of its own: without a number its best trial is meant.
    """
    run_id, _, last = name.partition(":")
    found = there(run_id)
    if is_suite(found.record):
        number, _, rest = last.partition(":")
        if number.isdecimal():
            found, last = named(f"{run_id}:{number}"), rest
        else:
            found = _best(found)
    if last and checkpoint:
        raise UserError(f"'{name}' names a checkpoint already: {last}", "Leave --checkpoint out.")
    return found, last or checkpoint


def shown_by(name: str) -> Named:
    """Return the run or trial of a name; of a suite the best trial, by its only objective.

    A suite with folds or several objectives has none, nor one without a value.
    """
    found = named(name)
    if found.trial or not is_suite(found.record):
        return found
    _enter_trials(found.folder)
    modes = (each.mode for each in sought_by(found.folder).objectives)
    trial = open_ledger().best_trial(found.name, *modes)
    return found if trial is None or FOLD in trial.values else replace(found, trial=trial)


def _enter_trials(suite: RunFolder) -> None:
    from headrace.runs.trials import note_trials  # lists of runs do without it

    note_trials(suite)


def _best(suite: Named) -> Named:
    """Return the best trial of a suite, and log which; or raise why it has none."""
    found, run_id = shown_by(suite.name), suite.name
    trial, objectives = found.trial, sought_by(suite.folder).objectives
    by = ", ".join(f"{each.mode} {each.metric}" for each in objectives) or "none"
    if trial is None:
        needs = f"one objective ({by}), no folds, and a trial that has ended with a value"
        hint = f"Name a trial, as {run_id}:1; headrace results {run_id} shows them."
        raise UserError(f"Suite {run_id} has no best trial; that needs {needs}", hint)
    best = f"{trial.number}, {trial.name}, {by} {trial.objective:.5g}"
    logger.warning("Best trial of suite %s: %s", run_id, best)
    return found
