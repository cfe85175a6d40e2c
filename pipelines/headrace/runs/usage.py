"""Records how much time and money attempts took of their leases' machines, in the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
                held = LeaseMachines(run, lease, machines.get(lease.lease_id, ()), now, suite=suite)
                own = [each for each in of_run if each.lease_id == lease.lease_id]
                yield from held.rows([_facts(lease, each) for each in own])
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
class AttemptFacts:
    """An attempt of a step, from the ledger or its folder."""

    attempt: AttemptRecord
    state: StepState
    cause: str
    started_at: float | None
    finished_at: float | None
    usage: AttemptUsage


class LeaseMachines:
    """The machines of a lease, at a moment in seconds since the epoch."""

    def __init__(
        self,
        run: RunRecord,
        lease: LeaseRecord,
        machines: Sequence[MachineRecord],
        now: float,
        *,
        suite: str,
    ) -> None:
        self._run, self._lease, self._machines = run, lease, machines
        self._now, self._suite = now, suite
        self._user = user_of(RunFolder(Path(run.folder)), run.owner)
        self._spans = [
            Span(begin=row.started_at, end=row.ended_at or now, usd_per_hour=row.usd_per_hour)
            for row in self._machines
        ]

    def rows(self, attempts: Sequence[AttemptFacts]) -> list[UsageRecord]:
        """Rows of all attempts at steps that ran on them, and of their time that none took."""
        spans = [self._span(each) for each in attempts]
        taken = iter(parts(self._spans, [each for each in spans if each is not None]))
        rows = [
            self._of_step(each, Share() if span is None else next(taken))
            for each, span in zip(attempts, spans, strict=True)
        ]
        return [*rows, self._idle(rows)] if self._machines else rows

    def of_trial(self, ended: Ended) -> UsageRecord:
        """The row of an attempt at a trial."""
        usage, began = ended.usage, ended.started_at
        own = self._machines_of(ended)
        price = terms(own).get("usd_per_hour")
        seconds = max(ended.finished_at - ended.started_at, 0.0)
        node_s = seconds * ended.node_share * usage.nodes
        usd = None if price is None else price * node_s / HOUR_S
        state, asked_at = ended.state, ended.asked_at or began
        return self._row(
            step=_OF_TRIALS,
            trial=ended.number,
            attempt=ended.attempt,
            kind=_TRIAL,
            created_at=asked_at,
            state=state,
            cause=ended.failure_class.value if ended.failure_class else state.value,
            started_at=began,
            finished_at=ended.finished_at,
            **figures(Share(node_s=node_s, usd=usd), seconds, usage, state),
            **waits(own, asked_at, began, began),
            **terms(own),
        )

    def _idle(self, steps: Sequence[UsageRecord]) -> UsageRecord:
        """Return the row of time that no attempt used, such as booting and waiting for work."""
        every = [
            row.billed_s if row.ended_at is not None else billed_s(row.started_at, self._now, 0.0)
            for row in self._machines
        ]
        taken = (Share(node_s=each.node_s, usd=each.usd) for each in steps)
        left = rest(whole(self._spans, every), (*taken, *self._trials()))
        is_open = self._lease.state.is_active
        return self._row(
            step=self._lease.lease_id,
            kind=IDLE,
            created_at=self._lease.created_at,
            state=StepState.RUNNING if is_open else StepState.SUCCEEDED,
            cause=IDLE,
            started_at=min(row.started_at for row in self._machines),
            finished_at=self._lease.ended_at,
            nodes=len(self._machines),
            node_s=left.node_s,
            usd=left.usd,
            usd_idle=left.usd,
            idle_s=left.node_s,
        )

    def _trials(self) -> Iterator[Share]:
        """Yield the shares of trials that are recorded."""
        if self._suite:
            lease_id = self._lease.lease_id
            for each in open_ledger().usage_sums(None, lease_id=lease_id, kind=_TRIAL):
                yield Share(node_s=each.node_s, usd=None if each.unpriced else each.usd)

    def _span(self, facts: AttemptFacts) -> Span | None:
        """Return the time in which an attempt itself used the machines; None if it did not."""
        if facts.started_at is None or facts.attempt.kind == _OF_TRIALS:
            return None
        return Span(begin=facts.started_at, end=facts.finished_at or self._now)

    def _of_step(self, facts: AttemptFacts, part: Share) -> UsageRecord:
        attempt, usage, began = facts.attempt, facts.usage, facts.started_at
        seconds = 0.0 if began is None else (facts.finished_at or self._now) - began
        if attempt.kind == _STAGING:
            usage = usage.model_copy(update={"staging_s": seconds})
        there = self._there_at(began if began is not None else self._now)
        first = sorted(self._machines, key=lambda row: (row.started_at, row.created_at))[:1]
        until = began if attempt.kind == _OF_TRIALS else facts.finished_at
        return self._row(
            step=attempt.step,
            attempt=attempt.attempt,
            kind=attempt.kind,
            created_at=attempt.created_at,
            state=facts.state,
            cause=facts.cause,
            started_at=began,
            finished_at=facts.finished_at,
            **(
                {} if began is None else waits(first, attempt.created_at, began, until or self._now)
            ),
            **figures(part, max(seconds, 0.0), usage, facts.state),
            **terms(there),
        )

    def _machines_of(self, ended: Ended) -> list[MachineRecord]:
        """Return the machines of a trial's attempt; all that were there if they are unknown."""
        there = self._there_at(ended.started_at)
        named = [row for row in self._machines if row.machine_id in ended.machines]
        node = ended.usage.node
        return named or [row for row in there if row.machine_id.partition("#")[0] == node] or there

    def _there_at(self, at: float) -> list[MachineRecord]:
        """Return the machines that were there at a moment; all if none is known."""
        begun = [row for row in self._machines if row.started_at <= at]
        there = [row for row in begun if row.ended_at is None or row.ended_at > at]
        return there or begun or list(self._machines)

    def _row(self, **values: Any) -> UsageRecord:
        at = values["finished_at"] or self._now
        return UsageRecord(
            run_id=self._run.run_id,
            lease_id=self._lease.lease_id,
            owner=self._user,
            site_name=self._run.site_name,
            recipe_name=self._run.recipe_name,
            role=self._lease.role,
            suite=self._suite,
            day=time.strftime("%Y-%m-%d", time.gmtime(at)),
            **values,
        )


def _facts(lease: LeaseRecord, attempt: AttemptRecord) -> AttemptFacts:
    result, began = None, attempt.started_at
    if attempt.number is not None:
        folder = LeaseFolder(Path(lease.folder)).step(attempt.number)
        try:
            result, status = mailbox.outcome(folder), mailbox.status(folder)
        except StepError as error:
            logger.warning("The reported usage of attempt %s is left out: %s", attempt.key, error)
        else:
            if began is None and status.state is not StepState.QUEUED:
                began = status.updated_at - status.elapsed_s
    state = attempt.state if result is None or attempt.state.is_final else result.state
    failure = result.failure.failure_class if result is not None and result.failure else None
    cause = attempt.failure_class or failure
    return AttemptFacts(
        attempt=attempt,
        state=state,
        cause=cause.value if cause else state.value,
        started_at=began if result is None else result.started_at,
        finished_at=attempt.finished_at if result is None else result.finished_at,
        usage=(result.usage if result is not None else None) or AttemptUsage(),
    )
