"""Rows of any number of runs, by one query per table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, exists, func, or_, select, type_coerce
from sqlalchemy.orm import aliased

from headrace.ledger.database import LedgerPart, grouped
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.states import StepState

NEWEST_LEASES = select(LeaseRecord).order_by(
    LeaseRecord.created_at.desc(), LeaseRecord.lease_id.desc()
)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """A dataset that a run has packed, or has found packed."""

    run_id: str
    folder: str
    """Folder of the run."""
    outputs: Mapping[str, Any]
    """Outputs of packing."""
    ended_at: float
    """End of packing."""
    is_trained_on: bool
    """Whether the run continued with a training, or with a suite's trials."""


class ManyRuns(LedgerPart):
    """The part of the ledger that lists runs, and rows of many runs at once."""

    def runs(
        self,
        limit: int = 50,
        states: Collection[StepState] = (),
        text: str = "",
        run_ids: Collection[str] = (),
        sites: Collection[str] | None = None,
    ) -> tuple[RunRecord, ...]:
        """Return at most `limit` runs, newest first.

        Args:
            limit: Most runs.
            states: States that are included; empty for all.
            text: Part of their id, recipe or site, in upper or lower case.
            run_ids: Their ids; empty for all.
            sites: Sites that are included; None for all.
        """
        query = select(RunRecord).order_by(RunRecord.created_at.desc(), RunRecord.run_id.desc())
        if not run_ids:
            query = query.where(RunRecord.is_forgotten.is_(False))
        if states:
            query = query.where(RunRecord.state.in_(states))
        if run_ids:
            query = query.where(RunRecord.run_id.in_(run_ids))
        if sites is not None:
            query = query.where(RunRecord.site_name.in_(sites))
        if text:
            named = (RunRecord.run_id, RunRecord.recipe_name, RunRecord.site_name)
            query = query.where(or_(*(each.icontains(text, autoescape=True) for each in named)))
        return self._all(query.limit(limit))

    def attempts_of(self, run_ids: Collection[str]) -> Mapping[str, Sequence[AttemptRecord]]:
        """Return all attempts by run, in the order of their requests."""
        query = select(AttemptRecord).where(AttemptRecord.run_id.in_(run_ids))
        order = (AttemptRecord.created_at, AttemptRecord.step, AttemptRecord.attempt)
        return grouped((row.run_id, row) for row in self._all(query.order_by(*order)))

    def leases_of(self, run_ids: Collection[str]) -> Mapping[str, Sequence[LeaseRecord]]:
        """Return all leases by run, the newest first."""
        query = NEWEST_LEASES.where(LeaseRecord.run_id.in_(run_ids))
        return grouped((row.run_id, row) for row in self._all(query))

    def machines_of(self, run_ids: Collection[str]) -> Mapping[str, Sequence[MachineRecord]]:
        """Return all machines by run."""
        query = select(LeaseRecord.run_id, MachineRecord).join(
            LeaseRecord, LeaseRecord.lease_id == MachineRecord.lease_id
        )
        with self._database.read() as session:
            rows = session.execute(query.where(LeaseRecord.run_id.in_(run_ids)))
            return grouped((run_id, row) for run_id, row in rows)

    def packings(
        self, limit: int, text: str = "", sites: Collection[str] | None = None
    ) -> tuple[Packing, ...]:
        """Return at most `limit` datasets of runs, the newest first.

        Args:
            limit: Most packings.
            text: Part of their outputs, as a fingerprint.
            sites: Sites of the runs; None for all.
        """
        later = aliased(AttemptRecord)
        trains = exists().where(
            later.run_id == RunRecord.run_id, later.kind.in_(("train", "suite"))
        )
        ended_at = func.coalesce(AttemptRecord.finished_at, AttemptRecord.created_at)
        columns = (RunRecord.run_id, RunRecord.folder, AttemptRecord.outputs)
        packed = (
            select(*columns, ended_at.label("ended_at"), trains.label("is_trained_on"))
            .join(AttemptRecord, AttemptRecord.run_id == RunRecord.run_id)
            .where(AttemptRecord.kind == "pack", AttemptRecord.state == StepState.SUCCEEDED)
            .order_by(AttemptRecord.created_at.desc(), AttemptRecord.key.desc())
        )
        if sites is not None:
            packed = packed.where(RunRecord.site_name.in_(sites))
        if text:
            outputs = type_coerce(AttemptRecord.outputs, Text)
            packed = packed.where(outputs.contains(text, autoescape=True))
        with self._database.read() as session:
            rows = session.execute(packed.limit(limit)).mappings()
            return tuple(Packing(**row) for row in rows)

    def trials_counted(self, run_ids: Collection[str]) -> Mapping[str, Mapping[StepState, int]]:
        """Return entered trials by suite and state; states without trials are absent."""
        query = select(TrialRecord.run_id, TrialRecord.state, func.count())
        query = query.where(TrialRecord.run_id.in_(run_ids))
        with self._database.read() as session:
            rows = session.execute(query.group_by(TrialRecord.run_id, TrialRecord.state))
            found = grouped((run_id, (state, count)) for run_id, state, count in rows)
        return {run_id: dict(counts) for run_id, counts in found.items()}
