"""Copy the trials of suites to the ledger from the journals that their drivers append to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace.files.atomic import is_there
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import JournalPart, TrialRecord
from headrace.ledger.usage_records import UsageRecord
from headrace.runs.machine_records import record_machines
from headrace.runs.usage import LeaseMachines, machines_by_lease
from headrace.states import StepState
from headrace.suites.records import (
    BLOCK_BYTES,
    Added,
    Assigned,
    CommandsApplied,
    Ended,
    Entry,
    Started,
    Withdrawn,
    entries_from,
)


def note_trials(run: RunFolder) -> None:
    """Copy new entries of a suite's journal to the ledger; cheap without new entries.

    Rows, usage and the position in the journal change in one transaction, so several processes may
    call it at once, and any may be killed. A new ledger reads the whole journal again. Trials that
    a suite left running at its end wait from then on.
    """
    ledger, run_id = open_ledger(), run.run_id
    while is_there(run.journal):
        begin = ledger.journal_read(run_id)
        entries, end = entries_from(run.journal, begin)
        if end == begin:
            break
        added = {entry.trial.number for entry in entries if isinstance(entry, Added)}
        known = ledger.trials_numbered(run_id, _numbers(entries) - added)
        rows = folded(run_id, known, entries)
        ended = [each for each in entries if isinstance(each, Ended) and not each.site]
        part, gone = JournalPart(run_id, begin, end), _numbers(entries) - rows.keys()
        ledger.put_trials(rows.values(), _usage(run_id, ended), part, gone)
    ledger.stop_trials(run_id)


def changed_since(record: RunRecord, begin: int, end: int) -> set[int] | None:
    """Return the trials in whole lines of a suite's journal between two bytes.

    None if that is more than is read at once.
    """
    if end - begin > BLOCK_BYTES:
        return None
    return _numbers(entries_from(RunFolder(Path(record.folder)).journal, begin)[0])


def folded(
    run_id: str, known: Mapping[int, TrialRecord], entries: Iterable[Entry]
) -> dict[int, TrialRecord]:
    """Return rows of trials after further entries; unknown and withdrawn trials have none.

    Args:
        run_id: The suite's run.
        known: Rows of trials before; they are changed.
        entries: Entries of the journal, the oldest first.
    """
    rows = dict(known)
    for entry in entries:
        if isinstance(entry, Added):
            rows.setdefault(entry.trial.number, _row(run_id, entry))
        elif isinstance(entry, Withdrawn):
            rows.pop(entry.number, None)
        for row in (rows[number] for number in _of(entry) if number in rows):
            _change(row, entry)
    return rows


def _usage(run_id: str, ended: Iterable[Ended]) -> list[UsageRecord]:
    """Return the usage of trials' attempts: their shares of machines while they last.

    Attempts of a suite's parts are left out: these record them, on their leases.
    """
    ledger, now = open_ledger(), time.time()
    begun = [each for each in ended if each.attempt]  # others were ended before they began
    rows = []
    for lease in ledger.leases(run_id=run_id):
        own = [each for each in begun if each.lease_id == lease.lease_id]
        names = {name for each in own for name in each.machines}
        if names - {row.machine_id for row in ledger.machines(lease_id=lease.lease_id)}:
            record_machines(lease)  # some have come since
        if own:
            found = machines_by_lease([lease]).get(lease.lease_id, ())
            held = LeaseMachines(lease=lease, machines=found, now=now)
            rows += [held.of_trial(each) for each in own]
    return rows


def _row(run_id: str, added: Added) -> TrialRecord:
    known = added.trial.model_dump(exclude={"priority"})
    return TrialRecord(run_id=run_id, attempts=added.attempts, created_at=added.at, **known)


def _change(row: TrialRecord, entry: Entry) -> None:
    if isinstance(entry, CommandsApplied):
        row.state, row.pruned, row.finished_at = StepState.QUEUED, False, None
        row.objective, row.objectives, row.metrics, row.weights = None, (), {}, ""
    elif isinstance(entry, Assigned):
        row.site = entry.site
    elif isinstance(entry, Started):
        row.state, row.attempts, row.node = StepState.RUNNING, entry.attempt, entry.node
        row.site = entry.site
        row.started_at, row.finished_at = row.started_at or entry.at, None
    elif isinstance(entry, Ended):
        _end(row, entry)


def _end(row: TrialRecord, entry: Ended) -> None:
    row.attempts = max(row.attempts, entry.attempt)
    row.failure_class, row.message = entry.failure_class, entry.message
    row.site, row.environment, row.weights = entry.site, entry.environment, entry.weights
    if not entry.is_final:
        row.state = StepState.QUEUED
        return
    row.state, row.pruned, row.finished_at = entry.state, entry.pruned, entry.finished_at
    row.metrics, row.objectives = dict(entry.metrics), entry.objectives
    first = next(iter(entry.objectives), math.nan)
    row.objective = first if math.isfinite(first) else None


def _numbers(entries: Iterable[Entry]) -> set[int]:
    return {number for entry in entries for number in _of(entry)}


def _of(entry: Entry) -> Sequence[int]:
    """Return the numbers of the trials that an entry changes."""
    if isinstance(entry, CommandsApplied):
        return entry.retried
    return (entry.trial.number if isinstance(entry, Added) else entry.number,)
