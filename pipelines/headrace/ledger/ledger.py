"""The ledger: runs, leases and attempts in SQLite or PostgreSQL.

Only the control side writes it, from the files that the cluster's side leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from headrace.errors import LedgerError, UnknownNameError, nearest, removed
from headrace.ledger.audit_rows import ActRows
from headrace.ledger.columns import LedgerRow
from headrace.ledger.database import AnyRow, Database, default_url, given
from headrace.ledger.lease_slots import ACTIVE, LeaseSlots
from headrace.ledger.machine_rows import MachineRows
from headrace.ledger.many_runs import NEWEST_LEASES, ManyRuns
from headrace.ledger.rows import AttemptRecord, LeaseRecord, LedgerSummary, RunRecord, WaitRecord
from headrace.ledger.run_filter import Marks
from headrace.ledger.trial_rows import TrialRows
from headrace.ledger.usage_rows import UsageRows
from headrace.states import BY_HAND, LeaseState, Removal, StepState

_OPEN = tuple(state for state in StepState if not state.is_final)


class Ledger(ActRows, MachineRows, ManyRuns, LeaseSlots, TrialRows, UsageRows):
    """Enter, find and change rows; safe to share between threads and to use after a fork.

    Raises `UnknownNameError` for a row that does not exist.
    """

    @classmethod
    def open(cls, url: str | None = None) -> Ledger:
        """Open the ledger; a missing schema is made and an older one is migrated first.

        Any number of processes may do so at once. The default is `$HEADRACE_LEDGER`, else a file
        in headrace's home folder.

        Raises:
            LedgerError: It cannot be reached, is on a network file system, or its schema is newer
                than this release.
        """
        database = Database(default_url() if url is None else url)
        database.bring_up_to_date()
        return cls(database)

    def snapshot(self) -> AbstractContextManager[None]:
        """Read everything that a thread reads within a block by one connection.

        Entries of others may not appear until its end, or until the block itself enters a row.
        """
        return self._database.snapshot()

    def summary(self) -> LedgerSummary:
        """Return how much the ledger holds."""
        with self._database.read() as session:
            return LedgerSummary(
                url=self._database.shown,
                revision=self._database.revision(session) or "",
                num_runs=_count(session, RunRecord),
                num_leases=_count(session, LeaseRecord),
                num_active_leases=_count(session, LeaseRecord, LeaseRecord.state.in_(ACTIVE)),
                num_attempts=_count(session, AttemptRecord),
            )

    def add_run(self, record: RunRecord, refers_to: Collection[str] = ()) -> bool:
        """Enter a run unless its key is known; return whether this call entered it.

        Raises:
            UnknownNameError: A run that it refers to was removed.
        """
        with self._database.write("runs") as session:
            for each in session.scalars(select(RunRecord).where(RunRecord.run_id.in_(refers_to))):
                _check_there(each)
            if session.scalar(select(RunRecord).filter_by(key=record.key)) is not None:
                return False
            if session.get(RunRecord, record.run_id) is not None:
                raise LedgerError(
                    f"Another run has the id '{record.run_id}'", "Give the run a new id."
                )
            session.add(record)
        return True

    def run(self, run_id: str) -> RunRecord:
        """Return the run with this id; raise `UnknownNameError` if it does not exist."""
        with self._database.read() as session:
            return _known(session, RunRecord, "run", run_id)

    def run_by_key(self, key: str) -> RunRecord | None:
        """Return the run with this key; None if it does not exist."""
        return self._first(select(RunRecord).filter_by(key=key))

    def finish_run(
        self,
        run_id: str,
        state: StepState,
        finished_at: float,
        outputs: dict[str, Any] | None = None,
    ) -> RunRecord:
        """Enter a run's end, unless it has ended already, and given outputs; return the run.

        Its leases wait no longer for a slot.
        """
        if not state.is_final:
            raise LedgerError(f"A run cannot finish as '{state.value}'", "Give a final state.")
        values = given(state=state, finished_at=finished_at, outputs=outputs)
        change = update(RunRecord).filter_by(run_id=run_id).where(RunRecord.state.in_(_OPEN))
        with self._database.write() as session:
            session.execute(change.values(values))
            session.execute(delete(WaitRecord).filter_by(run_id=run_id))
            return _known(session, RunRecord, "run", run_id)

    def reopen_run(
        self, run_id: str, owner: str | None = None, previous: str | None = None
    ) -> RunRecord:
        """Set a run to running, even if it has ended; return the run.

        The owner may change. With `previous`, the run changes only if that is its owner: of two
        users who take over a run at once, only one does.

        Raises:
            UnknownNameError: Its files were removed.
        """
        values = {"finished_at": None, **given(state=StepState.RUNNING, owner=owner)}
        change = update(RunRecord).filter_by(run_id=run_id, **given(owner=previous))
        with self._database.write("runs") as session:
            _check_there(_known(session, RunRecord, "run", run_id))
            session.execute(change.values(values))
            return _known(session, RunRecord, "run", run_id)

    def set_removed(
        self, run_id: str, removal: Removal | None, *, is_forgotten: bool = False
    ) -> bool:
        """Enter the removal of an ended run; return whether it had ended.

        From then on `reopen_run` refuses the run. Lists leave out a forgotten one.
        """
        change = update(RunRecord).filter_by(run_id=run_id).where(RunRecord.state.not_in(_OPEN))
        with self._database.write("runs") as session:
            session.execute(change.values(removed=removal, is_forgotten=is_forgotten))
            return _known(session, RunRecord, "run", run_id).state.is_final

    def put_sizes(self, sizes: Mapping[str, dict[str, int]]) -> None:
        """Enter bytes by part, by run."""
        with self._database.write() as session:
            for run_id, parts in sizes.items():
                session.execute(update(RunRecord).filter_by(run_id=run_id).values(sizes=parts))

    def change_run(self, run_id: str, **values: str | tuple[str, ...]) -> None:
        """Enter new `site_name`, `recipe_fingerprint` and `overrides` of a run that continues."""
        with self._database.write() as session:
            session.execute(update(RunRecord).filter_by(run_id=run_id).values(values))

    def mark_runs(self, run_ids: Collection[str], marks: Marks) -> None:
        """Change tags, note and star of runs; of none if one lacks a tag to remove."""
        with self._database.write("marks") as session:
            for record in [_known(session, RunRecord, "run", run_id) for run_id in run_ids]:
                for tag in {*marks.untag}.difference(record.tags):
                    what = f"Run {record.run_id} has no tag '{tag}'"
                    raise UnknownNameError(what, nearest(tag, record.tags))
                tags = dict.fromkeys((*record.tags, *marks.tag))
                record.tags = tuple(tag for tag in tags if tag not in marks.untag)
                record.note = record.note if marks.note is None else marks.note
                record.is_starred = record.is_starred if marks.star is None else marks.star

    def add_attempt(self, record: AttemptRecord) -> AttemptRecord:
        """Enter an attempt, unless the run has one with its step and number; return the entered.

        Raises:
            LedgerError: Its run or lease is not in the ledger, or its key names another attempt.
        """
        with self._database.write("attempts") as session:
            found = session.get(AttemptRecord, (record.run_id, record.step, record.attempt))
            if found is not None:
                return found
            if session.scalar(select(AttemptRecord).filter_by(key=record.key)) is not None:
                raise LedgerError(
                    f"Another attempt has the key '{record.key}'",
                    "A key is <run_id>/<step>/<attempt>.",
                )
            session.add(record)
        return record

    def attempts(self, run_id: str, step: str | None = None) -> tuple[AttemptRecord, ...]:
        """Return attempts of a run, of one of its steps or all, in the order of their requests."""
        found = self.attempts_of([run_id]).get(run_id, ())
        return tuple(row for row in found if step in (None, row.step))

    def latest_attempt(self, run_id: str, step: str) -> AttemptRecord | None:
        """Return the attempt at a step with the highest number; None if there is none."""
        query = select(AttemptRecord).filter_by(run_id=run_id, step=step)
        return self._first(query.order_by(AttemptRecord.attempt.desc()).limit(1))

    def past_attempts(
        self, recipe_name: str, site_name: str, role: str, limit: int
    ) -> tuple[AttemptRecord, ...]:
        """Return ended attempts of all runs of a recipe on a site's role; the newest first."""
        query = (
            select(AttemptRecord)
            .join(RunRecord, RunRecord.run_id == AttemptRecord.run_id)
            .join(LeaseRecord, LeaseRecord.lease_id == AttemptRecord.lease_id)
            .where(RunRecord.recipe_name == recipe_name)
            .where(LeaseRecord.site_name == site_name, LeaseRecord.role == role)
            .where(AttemptRecord.state.not_in(_OPEN))
            .order_by(AttemptRecord.created_at.desc(), AttemptRecord.key.desc())
            .limit(limit)
        )
        return self._all(query)

    def explain_attempt(self, run_id: str, step: str, attempt: int, message: str) -> None:
        """Replace the message of a failed attempt, even if it has ended."""
        change = update(AttemptRecord).filter_by(run_id=run_id, step=step, attempt=attempt)
        with self._database.write() as session:
            session.execute(change.values(message=message))

    def set_attempt(self, run_id: str, step: str, attempt: int, **changes: Any) -> AttemptRecord:
        """Change columns of an attempt unless it has ended; return it. None changes nothing."""
        values = given(**changes)
        change = update(AttemptRecord).filter_by(run_id=run_id, step=step, attempt=attempt)
        with self._database.write() as session:
            if values:
                session.execute(change.where(AttemptRecord.state.in_(_OPEN)).values(values))
            found = session.get(AttemptRecord, (run_id, step, attempt))
            if found is None:
                raise UnknownNameError(
                    f"The ledger has no attempt {attempt} at step '{step}' of run '{run_id}'",
                    "List the runs with `headrace runs`.",
                )
            return found

    def lease(self, lease_id: str) -> LeaseRecord:
        """Return the lease with this id; raise `UnknownNameError` if it does not exist."""
        with self._database.read() as session:
            return _known(session, LeaseRecord, "lease", lease_id)

    def latest_lease(self, key: str) -> LeaseRecord | None:
        """Return the newest lease with this key, in any state; None if there is none."""
        return self._first(NEWEST_LEASES.filter_by(key=key).limit(1))

    def leases(self, run_id: str | None = None, limit: int = 1000) -> tuple[LeaseRecord, ...]:
        """Return at most `limit` leases, of one run or of all, newest first."""
        return self._all(NEWEST_LEASES.filter_by(**given(run_id=run_id)).limit(limit))

    def set_lease_state(self, lease_id: str, state: LeaseState, **changes: Any) -> LeaseRecord:
        """Change columns of a lease unless it has ended; return it. None changes nothing."""
        change = update(LeaseRecord).filter_by(lease_id=lease_id)
        still_active = change.where(LeaseRecord.state.in_(ACTIVE))
        with self._database.write() as session:
            session.execute(still_active.values(state=state, **given(**changes)))
            return _known(session, LeaseRecord, "lease", lease_id)


def open_ledger() -> Ledger:
    """Return this process's ledger: `$HEADRACE_LEDGER`, or a SQLite file in headrace's home."""
    return _opened(default_url())


@lru_cache(maxsize=4)
def _opened(url: str) -> Ledger:
    return Ledger.open(url)


def _count(session: Session, kind: type[LedgerRow], *where: Any) -> int:
    return session.scalar(select(func.count()).select_from(kind).where(*where)) or 0


def _check_there(run: RunRecord) -> None:
    if run.removed is not None and run.removed.by != BY_HAND:  # those may come back
        raise removed(run.run_id, run.removed)


def _known(session: Session, kind: type[AnyRow], what: str, name: str) -> AnyRow:
    found = session.get(kind, name)
    suite, colon, number = name.partition(":")
    if found is None and colon:
        hint = f"Name {suite}; a failed trial runs again by: headrace suite retry {suite} {number}"
        raise UnknownNameError(f"'{name}' names a trial, this takes whole runs", hint)
    if found is None:
        newest = select(kind.__mapper__.primary_key[0]).order_by(kind.created_at.desc()).limit(10)
        raise UnknownNameError(
            f"There is no {what} '{name}' in the ledger", nearest(name, session.scalars(newest))
        )
    return found
