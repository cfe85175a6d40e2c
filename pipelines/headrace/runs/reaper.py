"""The reaper: ends whatever has no living owner, and puts the ledger right."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from headrace.clusters import client
from headrace.errors import HeadraceError
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import RunRecord
from headrace.runs.provenance import owner_is_gone
from headrace.runs.runs import Run, finish_run, open_run
from headrace.runs.settling import settle, settle_ended
from headrace.runs.steps import record_lost, record_outcome
from headrace.states import StepState
from headrace.steps import mailbox

OwnerIsDone = Callable[[RunRecord], bool]
"""Whether the owner of a run (an Airflow DAG run, say) has ended."""

StepIsAbandoned = Callable[[RunRecord, str], bool]
"""Whether nobody waits any more for the running step of this name."""

ABANDONED = "nobody waits for it any more"
"""Reason given to a step that the reaper cancels."""

_MOST_RUNS = 10_000


def reap(owner_is_done: OwnerIsDone, step_is_abandoned: StepIsAbandoned) -> tuple[str, ...]:
    """End steps, leases and runs that nobody answers for any more; a line for each.

    `owner_is_done` is asked for runs whose owner is no process of this machine that has ended,
    `step_is_abandoned` for running steps of runs whose owner lives.
    """
    done: list[str] = []
    for record in open_ledger().runs(limit=_MOST_RUNS, state=StepState.RUNNING):
        try:
            run = open_run(record.run_id)
        except HeadraceError as error:
            _write_off(record, error)
            done.append(f"run {record.run_id}: recorded as lost: {error.what}")
            continue
        if owner_is_gone(record.owner) or owner_is_done(record):
            end_run(run, StepState.LOST)
            owner = run.request.owner
            done.append(f"run {run.run_id}: its owner {owner} has ended; leases closed")
        else:
            done += _cancel_steps(run, partial(step_is_abandoned, record))
    return (*done, *settle_ended())


def _write_off(record: RunRecord, error: HeadraceError) -> None:
    for attempt in open_ledger().attempts(record.run_id):
        record_lost(attempt, error.what)
    open_ledger().finish_run(record.run_id, StepState.LOST, time.time(), {})


def end_run(run: Run, state: StepState, reason: str = ABANDONED) -> None:
    """End a run with everything that belongs to it, and record its final state and the reason."""
    _cancel_steps(run, lambda _step: True, reason)
    for record in open_ledger().leases(run_id=run.run_id):
        if record.state.is_active:
            settle(run, record, reason)
    _settle_attempts(run)
    finish_run(run, state)


def _cancel_steps(
    run: Run, is_abandoned: Callable[[str], bool], reason: str = ABANDONED
) -> list[str]:
    done = []
    for attempt in open_ledger().attempts(run.run_id):
        if attempt.state.is_final or attempt.number is None:
            continue
        folder = run.lease_folder(attempt.lease_id).step(attempt.number)
        if mailbox.outcome(folder) is None and is_abandoned(attempt.step):
            mailbox.request_cancel(folder, reason)
            done.append(f"step {attempt.key}: cancelled, {reason}")
    return done


def _settle_attempts(run: Run) -> None:
    for attempt in open_ledger().attempts(run.run_id):
        if attempt.state.is_final:
            continue
        lease = run.lease_folder(attempt.lease_id)
        folder = mailbox.find(lease, attempt.key)
        if folder is None:
            record_lost(attempt)
            continue
        result = mailbox.outcome(folder) or mailbox.lost(folder, client.why_ended(lease))
        record_outcome(run.run_id, attempt.step, attempt.attempt, result)
