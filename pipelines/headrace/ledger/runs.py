"""Runs in the ledger, and the attempts at their steps."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session
from typing_extensions import TypedDict, Unpack

from headrace.errors import LedgerError, UnknownNameError, nearest
from headrace.ledger.database import Database
from headrace.ledger.records import AttemptRecord, LeaseRecord, RunRecord
from headrace.states import FailureClass, StepState

_OPEN = tuple(state for state in StepState if not state.is_final)


class AttemptChanges(TypedDict, total=False):
    """What may change in an attempt; a key left out or None changes nothing."""

    state: StepState | None
    number: int | None
    failure_class: FailureClass | None
    message: str | None
    started_at: float | None
    finished_at: float | None
    outputs: dict[str, Any] | None


class RunRows:
    """Enter, find and change runs and attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_run(self, record: RunRecord) -> bool:
        """Enter a run, unless one with its key is there.

        Returns:
            True when this call entered it, False when the key was there already.

        Raises:
            LedgerError: Another run has the same `run_id`.
        """
        with self._database.write("runs") as session:
            if session.scalar(select(RunRecord).filter_by(key=record.key)) is not None:
                return False
            if session.get(RunRecord, record.run_id) is not None:
                raise LedgerError(
                    f"Another run has the id '{record.run_id}'", "Give the run a new id."
                )
            session.add(record)
        return True

    def run(self, run_id: str) -> RunRecord:
        """The run with this id.

        Raises:
            UnknownNameError: There is none.
        """
        with self._database.read() as session:
            return _known_run(session, run_id)

    def run_by_key(self, key: str) -> RunRecord | None:
        """The run with this key; None when there is none."""
        with self._database.read() as session:
            return session.scalar(select(RunRecord).filter_by(key=key))

    def runs(self, limit: int = 50, state: StepState | None = None) -> tuple[RunRecord, ...]:
        """At most `limit` runs, newest first; only those in one state where it is given."""
        query = select(RunRecord).limit(limit)
        if state is not None:
            query = query.filter_by(state=state)
        query = query.order_by(RunRecord.created_at.desc(), RunRecord.run_id.desc())
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def finish_run(
        self,
        run_id: str,
        state: StepState,
        finished_at: float,
        outputs: dict[str, Any] | None = None,
    ) -> RunRecord:
        """Enter how a run ended, unless it had ended before; the run as it stands then.

        Where `outputs` are not given, those that are there stay.

        Raises:
            UnknownNameError: There is no such run.
            LedgerError: The state is not final.
        """
        if not state.is_final:
            raise LedgerError(f"A run cannot finish as '{state.value}'", "Give a final state.")
        values: dict[str, Any] = {"state": state, "finished_at": finished_at}
        if outputs is not None:
            values["outputs"] = outputs
        change = update(RunRecord).filter_by(run_id=run_id).where(RunRecord.state.in_(_OPEN))
        with self._database.write() as session:
            session.execute(change.values(values))
            return _known_run(session, run_id)

    def reopen_run(
        self, run_id: str, owner: str | None = None, previous: str | None = None
    ) -> RunRecord:
        """Set a run to running, whether it has ended or not; the run as it stands then.

        A new owner may be given. With `previous`, nothing is changed unless that is its owner: of
        two who take a run over at once only one does.

        Raises:
            UnknownNameError: There is no such run.
        """
        values: dict[str, Any] = {"state": StepState.RUNNING, "finished_at": None}
        if owner is not None:
            values["owner"] = owner
        change = update(RunRecord).filter_by(run_id=run_id)
        if previous is not None:
            change = change.filter_by(owner=previous)
        with self._database.write() as session:
            session.execute(change.values(values))
            return _known_run(session, run_id)

    def add_attempt(self, record: AttemptRecord) -> AttemptRecord:
        """Enter an attempt, unless the run has this attempt at this step.

        Returns:
            The attempt as it stands in the ledger: the given one, or the one that was there.

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
        """Attempts of a run, at one of its steps or at all, in the order they were asked for."""
        query = _attempts_of(run_id, step).order_by(
            AttemptRecord.created_at, AttemptRecord.step, AttemptRecord.attempt
        )
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def latest_attempt(self, run_id: str, step: str) -> AttemptRecord | None:
        """The attempt at a step with the highest number; None when there is none."""
        query = _attempts_of(run_id, step).order_by(AttemptRecord.attempt.desc()).limit(1)
        with self._database.read() as session:
            return session.scalar(query)

    def past_attempts(
        self, recipe_name: str, site_name: str, role: str, limit: int
    ) -> tuple[AttemptRecord, ...]:
        """Ended attempts of all runs of a recipe on leases of a site's role, the newest first."""
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
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def explain_attempt(self, run_id: str, step: str, attempt: int, message: str) -> None:
        """Say better why an attempt failed, also when it has ended."""
        change = update(AttemptRecord).filter_by(run_id=run_id, step=step, attempt=attempt)
        with self._database.write() as session:
            session.execute(change.values(message=message))

    def set_attempt(
        self, run_id: str, step: str, attempt: int, **changes: Unpack[AttemptChanges]
    ) -> AttemptRecord:
        """Change an attempt, unless it has ended; the attempt as it stands then.

        Raises:
            UnknownNameError: There is no such attempt.
        """
        values = {name: value for name, value in changes.items() if value is not None}
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


def _known_run(session: Session, run_id: str) -> RunRecord:
    found = session.get(RunRecord, run_id)
    if found is None:
        newest = select(RunRecord.run_id).order_by(RunRecord.created_at.desc()).limit(10)
        raise UnknownNameError(
            f"There is no run '{run_id}' in the ledger", nearest(run_id, session.scalars(newest))
        )
    return found


def _attempts_of(run_id: str, step: str | None) -> Select[AttemptRecord]:
    query = select(AttemptRecord).filter_by(run_id=run_id)
    return query if step is None else query.filter_by(step=step)
