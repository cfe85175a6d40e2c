"""Rows of any number of runs, by one query per table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Text, exists, func, or_, select, type_coerce
from sqlalchemy.orm import aliased

from headrace.ledger.database import LedgerPart, grouped
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.run_filter import RunFilter, span_of
from headrace.ledger.trial_rows import TrialRecord
from headrace.states import StepState

NEWEST_LEASES = select(LeaseRecord).order_by(
    LeaseRecord.created_at.desc(), LeaseRecord.lease_id.desc()
)
_NEWEST_RUNS = select(RunRecord).order_by(RunRecord.created_at.desc(), RunRecord.run_id.desc())
_NO_RUNS = ("pack", "rehearsal", "part")
"""Kinds that are listed only by their names, or by `all`."""


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


class Comparable(NamedTuple):
    """Columns of a run by which lists choose and sort; of 10,000 runs whole rows take long."""

    run_id: str
    kind: str
    state: StepState
    overrides: tuple[str, ...]
    dataset: str
    seed: int | None
    outputs: dict[str, Any]


class ManyRuns(LedgerPart):
    """The part of the ledger that lists runs, and rows of many runs at once."""

    def runs(
        self,
        limit: int = 50,
        states: Collection[StepState] = (),
        sites: Collection[str] | None = None,
    ) -> tuple[RunRecord, ...]:
        """Return at most `limit` runs of all kinds, newest first; of given states and sites."""
        return self.find_runs(RunFilter(limit=limit, state=tuple(states), kind=("all",)), sites)

    def find_runs(
        self, wanted: RunFilter, sites: Collection[str] | None = None
    ) -> tuple[RunRecord, ...]:
        """Return at most `limit` runs that a filter lets through, newest first.

        Its conditions (`where`) and its order are the caller's, by `comparable`.
        """
        query = _NEWEST_RUNS.where(*_conditions(wanted, sites))
        return self._all(query.limit(wanted.limit))

    def comparable(
        self, wanted: RunFilter, sites: Collection[str] | None = None
    ) -> Sequence[Comparable]:
        """Return what conditions and orders look at, of all runs as `find_runs` without a limit."""
        columns = (getattr(RunRecord, name) for name in Comparable._fields)
        query = _NEWEST_RUNS.with_only_columns(*columns).where(*_conditions(wanted, sites))
        with self._database.read() as session:
            return [Comparable(*row) for row in session.execute(query)]

    def runs_of(self, run_ids: Collection[str]) -> tuple[RunRecord, ...]:
        """Return runs by their ids, newest first; unknown ones are left out."""
        return self._all(_NEWEST_RUNS.where(RunRecord.run_id.in_(run_ids)))

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
        """Return all machines by run; a suite over several sites has those of its parts, too."""
        runs, pairs = (RunRecord.run_id, RunRecord.part_of), []
        query = (
            select(*runs, MachineRecord)
            .join(LeaseRecord, LeaseRecord.lease_id == MachineRecord.lease_id)
            .join(RunRecord, RunRecord.run_id == LeaseRecord.run_id)
            .where(or_(*(each.in_(run_ids) for each in runs)))
        )
        with self._database.read() as session:
            for *of_row, row in session.execute(query):
                pairs += [(run_id, row) for run_id in of_row if run_id in run_ids]
        return grouped(pairs)

    def parts_of(self, run_id: str) -> tuple[RunRecord, ...]:
        """Return the parts of a suite over several sites, the newest first."""
        return self._all(_NEWEST_RUNS.filter_by(part_of=run_id))

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


def _conditions(wanted: RunFilter, sites: Collection[str] | None) -> Iterator[ColumnElement[bool]]:
    yield RunRecord.is_forgotten.is_(False)
    if sites is not None:
        yield RunRecord.site_name.in_(sites)
    if not wanted.kind:
        yield RunRecord.kind.not_in(_NO_RUNS)
    for column, values in (
        (RunRecord.kind, () if "all" in wanted.kind else wanted.kind),
        (RunRecord.state, wanted.state),
        (RunRecord.user, wanted.user),
        (RunRecord.recipe_name, wanted.recipe),
    ):
        if values:
            yield column.in_(values)
    yield RunRecord.created_at >= span_of(wanted.since)[0]
    yield RunRecord.created_at < span_of(wanted.until)[1]
    if wanted.starred:
        yield RunRecord.is_starred.is_(True)
    tags, overrides = (type_coerce(each, Text) for each in (RunRecord.tags, RunRecord.overrides))
    yield from (tags.icontains(f'"{tag}"', autoescape=True) for tag in wanted.tag)
    if wanted.text:
        names = (RunRecord.run_id, RunRecord.recipe_name, RunRecord.site_name, RunRecord.user)
        texts = dict.fromkeys((*names, RunRecord.dataset, RunRecord.note, tags), wanted.text)
        texts[overrides] = json.dumps(wanted.text)[1:-1]
        yield or_(*(each.icontains(text, autoescape=True) for each, text in texts.items()))
