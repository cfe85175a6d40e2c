"""Records how much attempts used of their leases' machines, in the ledger."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.errors import StepError
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord
from headrace.ledger.usage_records import UsageRecord
from headrace.ledger.usage_rows import at_most
from headrace.runs.machine_records import record_machines
from headrace.runs.parts import part_status, suite_of_part
from headrace.runs.usage_shares import Span, shares, waits
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.suites.records import Ended

logger = logging.getLogger(__name__)

_SUITE = "suite"
"""Step of trials."""

_OF_TRIALS = (_SUITE, "part")
"""Kinds of steps whose trials use their machines."""


def note_usage(*run_ids: str) -> None:
    """Record the usage of the steps of runs so far.

    The usage of trials is recorded with their rows before. Runs that cannot be read are left out.
    """
    for some in at_most(run_ids):
        open_ledger().put_usage(_usage(some))


def _usage(run_ids: Collection[str]) -> Iterator[UsageRecord]:
    ledger, now = open_ledger(), time.time()
    attempts, leases = ledger.attempts_of(run_ids), ledger.leases_of(run_ids)
    machines = machines_by_lease([*chain.from_iterable(leases.values())])
    for run_id in run_ids:
        of_run = attempts.get(run_id, ())
        try:
            for lease in leases.get(run_id, ()):
                rows = machines.get(lease.lease_id, ())
                held = LeaseMachines(lease=lease, machines=rows, now=now)
                own = (each for each in of_run if each.lease_id == lease.lease_id)
                yield from held.rows([each for each in own if each.kind != "sites"])
            copies = map(_copy, leases.get(run_id, ())[-1:] if suite_of_part(run_id) else ())
            yield from (row for row in copies if row.fetched_bytes)
        except (StepError, OSError) as error:
            logger.warning("Not all usage of run %s is recorded: %s", run_id, error)


def _copy(lease: LeaseRecord) -> UsageRecord:
    """Return the row of a part's dataset: the bytes that were copied to its site, and are there."""
    status = part_status(SiteFolder(Path(lease.folder).parents[1]).run(lease.run_id))
    return UsageRecord(
        run_id=lease.run_id,
        lease_id=lease.lease_id,
        step="copy",
        kind="copy",
        cause=StepState.SUCCEEDED.value,
        created_at=lease.created_at,
        until=lease.created_at,
        fetched_bytes=status.copied_bytes,
        stored_bytes=status.done,
    )


def machines_by_lease(leases: Sequence[LeaseRecord]) -> Mapping[str, Sequence[MachineRecord]]:
    """Return the machines by lease; those of leases without any are recorded first."""
    lease_ids = [lease.lease_id for lease in leases]
    known = open_ledger().machines_by_lease(lease_ids)
    unknown = [lease for lease in leases if lease.lease_id not in known]
    record_machines(*unknown)
    return open_ledger().machines_by_lease(lease_ids) if unknown else known


@dataclass(frozen=True, kw_only=True)
class LeaseMachines:
    """The machines of a lease at a moment."""

    lease: LeaseRecord
    machines: Sequence[MachineRecord]
    now: float
    """The moment, seconds since the epoch."""

    def rows(self, attempts: Sequence[AttemptRecord]) -> list[UsageRecord]:
        """Return the rows of all attempts at steps that ran on them."""
        rows = [self._of_step(each) for each in attempts]
        timed = [row for row in rows if row.started_at is not None and row.kind not in _OF_TRIALS]
        machines = [Span(row.started_at, row.ended_at or self.now) for row in self.machines]
        spans = [Span(row.started_at or 0.0, row.until) for row in timed]
        taken_s = {id(row): node_s
                   for row, node_s in zip(timed, shares(machines, spans), strict=True)}  # fmt: skip
        return [self._shared(row, taken_s.get(id(row), 0.0)) for row in rows]

    def of_trial(self, ended: Ended) -> UsageRecord:
        """Return the row of an attempt at a trial; it pays until its machines have ended."""
        own, began, asked_at = self._machines_of(ended), ended.started_at, ended.asked_at
        until = min((row.ended_at or ended.finished_at for row in own), default=math.inf)
        seconds = max(min(until, ended.finished_at) - began, 0.0)
        used, cpu_wh = ended.usage.model_dump(), ended.usage.cpu_energy_wh
        if cpu_wh is not None:
            used["cpu_energy_wh"] = cpu_wh * ended.node_share
        return UsageRecord(
            run_id=self.lease.run_id,
            lease_id=self.lease.lease_id,
            machine_id=own[0].machine_id if len(own) == 1 else "",
            step=_SUITE,
            trial=ended.number,
            attempt=ended.attempt,
            kind="trial",
            created_at=asked_at or began,
            cause=(ended.failure_class or ended.state).value,
            started_at=began,
            until=ended.finished_at,
            node_s=seconds * ended.node_share * ended.usage.nodes,
            **used,
            **waits(own, asked_at or began, began, began),
        )

    def _of_step(self, attempt: AttemptRecord) -> UsageRecord:
        """Return what the ledger and the folder of an attempt at a step report."""
        result, began = None, attempt.started_at
        if attempt.number is not None:
            folder = LeaseFolder(Path(self.lease.folder)).step(attempt.number)
            try:
                result, status = mailbox.outcome(folder), mailbox.status(folder)
            except StepError as error:
                left_out = "The reported usage of attempt %s is left out: %s"
                logger.warning(left_out, attempt.key, error)
            else:
                if began is None and status.state is not StepState.QUEUED:
                    began = status.updated_at - status.elapsed_s
        state = attempt.state if result is None or attempt.state.is_final else result.state
        failure = result.failure.failure_class if result is not None and result.failure else None
        usage = (result.usage if result is not None else None) or AttemptUsage()
        ended_at = attempt.finished_at if result is None else result.finished_at
        return UsageRecord(
            run_id=self.lease.run_id,
            lease_id=self.lease.lease_id,
            step=attempt.step,
            attempt=attempt.attempt,
            kind=attempt.kind,
            created_at=attempt.created_at,
            cause=(attempt.failure_class or failure or state).value,
            started_at=began if result is None else result.started_at,
            until=self.now if ended_at is None else ended_at,
            **usage.model_dump(),
        )

    def _shared(self, row: UsageRecord, node_s: float) -> UsageRecord:
        """Return the row of an attempt at a step with its share of machines and its waits."""
        found: dict[str, Any] = {"node_s": node_s}
        if (began := row.started_at) is not None:
            first = sorted(self.machines, key=lambda each: (each.started_at, each.created_at))[:1]
            until = began if row.kind in _OF_TRIALS else row.until
            found |= waits(first, row.created_at, began, until)
            if row.kind == "stage":
                found["staging_s"] = max(row.until - began, 0.0)
        return row.model_copy(update=found)

    def _machines_of(self, ended: Ended) -> list[MachineRecord]:
        """Return the machines of a trial's attempt; all that were there if they are unknown."""
        there = self._there_at(ended.started_at)
        named = [row for row in self.machines if row.machine_id in ended.machines]
        node = ended.usage.node
        return named or [row for row in there if row.machine_id.partition("#")[0] == node] or there

    def _there_at(self, at: float) -> list[MachineRecord]:
        """Return the machines that were there at a moment; all if none is known."""
        begun = [row for row in self.machines if row.started_at <= at]
        there = [row for row in begun if row.ended_at is None or row.ended_at > at]
        return there or begun or list(self.machines)
