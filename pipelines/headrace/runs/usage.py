"""Records how much time and money attempts took of their leases' machines, in the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.errors import StepError
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.usage_records import IDLE, UsageRecord
from headrace.ledger.usage_rows import at_most
from headrace.runs.costs import HOUR_S, billed_s
from headrace.runs.machine_records import record_machines
from headrace.runs.owners import user_of
from headrace.runs.usage_shares import Share, Span, figures, parts, rest, terms, waits, whole
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.suites.records import Ended

logger = logging.getLogger(__name__)

_OF_TRIALS = "suite"
"""Kind of the step whose trials use its machines."""

_TRIAL = "trial"
"""Kind of the rows of trials."""

_STAGING = "stage"
"""Kind of the step that only stages."""


def note_usage(*run_ids: str) -> None:
    """Record the usage of the steps of runs so far, and the idle time of their machines.

    The usage of trials is recorded with their rows before. Runs that cannot be read are left out.
    """
    for some in at_most(run_ids):
        open_ledger().put_usage(_usage(some))


def _usage(run_ids: Collection[str]) -> Iterator[UsageRecord]:
    ledger, now = open_ledger(), time.time()
    attempts, leases = ledger.attempts_of(run_ids), ledger.leases_of(run_ids)
    machines = machines_by_lease([*chain.from_iterable(leases.values())])
    for run in ledger.runs(len(run_ids), run_ids=run_ids):
        of_run = attempts.get(run.run_id, ())
        suite = run.run_id if any(each.kind == _OF_TRIALS for each in of_run) else ""
        try:
            for lease in leases.get(run.run_id, ()):
                rows = machines.get(lease.lease_id, ())
                held = LeaseMachines(run=run, lease=lease, machines=rows, now=now, suite=suite)
                yield from held.rows([each for each in of_run if each.lease_id == lease.lease_id])
        except StepError as error:
            logger.warning("The usage of run %s is not recorded: %s", run.run_id, error.what)


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

    run: RunRecord
    lease: LeaseRecord
    machines: Sequence[MachineRecord]
    now: float
    """The moment, seconds since the epoch."""
    suite: str
    """Run of the suite whose trials used them; empty if there is none."""

    @cached_property
    def _user(self) -> str:
        return user_of(RunFolder(Path(self.run.folder)), self.run.owner)

    @cached_property
    def _spans(self) -> Sequence[Span]:
        return [
            Span(begin=row.started_at, end=row.ended_at or self.now, usd_per_hour=row.usd_per_hour)
            for row in self.machines
        ]

    def rows(self, attempts: Sequence[AttemptRecord]) -> list[UsageRecord]:
        """Return the rows of all attempts at steps that ran on them, and of their idle time."""
        reported = [self._of_step(each) for each in attempts]
        spans = {
            (row.step, row.attempt): Span(begin=row.started_at, end=row.finished_at or self.now)
            for row in reported
            if row.started_at is not None and row.kind != _OF_TRIALS
        }
        taken = dict(zip(spans, parts(self._spans, [*spans.values()]), strict=True))
        rows = []
        for row in reported:
            began = row.started_at
            there = self._there_at(self.now if began is None else began)
            first = sorted(self.machines, key=lambda each: (each.started_at, each.created_at))[:1]
            until = (began if row.kind == _OF_TRIALS else row.finished_at) or self.now
            waited = {} if began is None else waits(first, row.created_at, began, until)
            share = taken.get((row.step, row.attempt), Share())
            rows.append(self._shared(row, share, there, waited))
        return [*rows, self._idle(rows)] if self.machines else rows

    def of_trial(self, ended: Ended) -> UsageRecord:
        """Return the row of an attempt at a trial."""
        own, began, asked_at = self._machines_of(ended), ended.started_at, ended.asked_at
        row = self._row(
            step=_OF_TRIALS,
            trial=ended.number,
            attempt=ended.attempt,
            kind=_TRIAL,
            created_at=asked_at or began,
            state=ended.state,
            cause=(ended.failure_class or ended.state).value,
            started_at=began,
            finished_at=ended.finished_at,
            **ended.usage.model_dump(),
        )
        price = terms(own).get("usd_per_hour")
        node_s = max(ended.finished_at - began, 0.0) * ended.node_share * row.nodes
        share = Share(node_s=node_s, usd=None if price is None else price * node_s / HOUR_S)
        return self._shared(row, share, own, waits(own, row.created_at, began, began))

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
        return self._row(
            step=attempt.step,
            attempt=attempt.attempt,
            kind=attempt.kind,
            created_at=attempt.created_at,
            state=state,
            cause=(attempt.failure_class or failure or state).value,
            started_at=began if result is None else result.started_at,
            finished_at=attempt.finished_at if result is None else result.finished_at,
            **usage.model_dump(),
        )

    def _shared(
        self,
        row: UsageRecord,
        share: Share,
        machines: Sequence[MachineRecord],
        waited: Mapping[str, float],
    ) -> UsageRecord:
        """Return the row of an attempt with its share of machines, and their terms."""
        began = row.started_at
        seconds = 0.0 if began is None else max((row.finished_at or self.now) - began, 0.0)
        if row.kind == _STAGING:
            row = row.model_copy(update={"staging_s": seconds})
        found = {**figures(share, seconds, row, row.state), **waited, **terms(machines)}
        return row.model_copy(update=found)

    def _idle(self, steps: Sequence[UsageRecord]) -> UsageRecord:
        """Return the row of time that no attempt used, such as booting and waiting for work."""
        every = [
            row.billed_s if row.ended_at is not None else billed_s(row.started_at, self.now, 0.0)
            for row in self.machines
        ]
        taken = (Share(node_s=each.node_s, usd=each.usd) for each in steps)
        left = rest(whole(self._spans, every), (*taken, *self._trials()))
        is_open = self.lease.state.is_active
        return self._row(
            step=self.lease.lease_id,
            kind=IDLE,
            created_at=self.lease.created_at,
            state=StepState.RUNNING if is_open else StepState.SUCCEEDED,
            cause=IDLE,
            started_at=min(row.started_at for row in self.machines),
            finished_at=self.lease.ended_at,
            nodes=len(self.machines),
            node_s=left.node_s,
            usd=left.usd,
            usd_idle=left.usd,
            idle_s=left.node_s,
        )

    def _trials(self) -> Iterator[Share]:
        """Yield the shares of trials that are recorded."""
        if self.suite:
            lease_id = self.lease.lease_id
            for each in open_ledger().usage_sums(None, lease_id=lease_id, kind=_TRIAL):
                yield Share(node_s=each.node_s, usd=None if each.unpriced else each.usd)

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

    def _row(self, **values: Any) -> UsageRecord:
        at = values["finished_at"] or self.now
        return UsageRecord(
            run_id=self.run.run_id,
            lease_id=self.lease.lease_id,
            owner=self._user,
            site_name=self.run.site_name,
            recipe_name=self.run.recipe_name,
            role=self.lease.role,
            suite=self.suite,
            day=time.strftime("%Y-%m-%d", time.gmtime(at)),
            **values,
        )
