"""Runs in the ledger."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from headrace.errors import LedgerError, UnknownNameError, nearest
from headrace.ledger.records import RunRecord
from headrace.ledger.rows import Rows, fetch, fetch_first
from headrace.ledger.tables import runs
from headrace.states import StepState

_OPEN = tuple(state.value for state in StepState if not state.is_final)


class RunRows(Rows):
    """Enter, find and finish runs."""

    def add_run(self, record: RunRecord) -> bool:
        """Enter a run, unless one with its key is there.

        Returns:
            True when this call entered it, False when the key was there already.

        Raises:
            LedgerError: Another run has the same `run_id`.
        """
        with self._database.write() as connection:
            if self._insert(connection, runs, record):
                return True
            if _by_key(connection, record.key) is None:
                raise LedgerError(
                    f"Another run has the id '{record.run_id}'", "Give the run a new id."
                )
            return False

    def run(self, run_id: str) -> RunRecord:
        """The run with this id.

        Raises:
            UnknownNameError: There is none.
        """
        with self._database.read() as connection:
            return _run(connection, run_id)

    def run_by_key(self, key: str) -> RunRecord | None:
        """The run with this key; None when there is none."""
        with self._database.read() as connection:
            return _by_key(connection, key)

    def runs(self, limit: int = 50, state: StepState | None = None) -> tuple[RunRecord, ...]:
        """Runs, newest first.

        Args:
            limit: Most runs to give.
            state: Only runs in this state.
        """
        query = select(runs).order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit)
        if state is not None:
            query = query.where(runs.c.state == state.value)
        with self._database.read() as connection:
            return fetch(connection, RunRecord, query)

    def finish_run(
        self,
        run_id: str,
        state: StepState,
        finished_at: float,
        outputs: dict[str, Any] | None = None,
    ) -> RunRecord:
        """Enter how a run ended; a run that has ended stays as it is.

        Args:
            run_id: The run.
            state: A final state.
            finished_at: When it ended, seconds since the epoch.
            outputs: What it gave; None keeps what is there.

        Returns:
            The run as it stands in the ledger.

        Raises:
            UnknownNameError: There is no such run.
            LedgerError: The state is not final.
        """
        if not state.is_final:
            raise LedgerError(f"A run cannot finish as '{state.value}'", "Give a final state.")
        values: dict[str, Any] = {"state": state.value, "finished_at": finished_at}
        if outputs is not None:
            values["outputs"] = outputs
        change = update(runs).where(runs.c.run_id == run_id, runs.c.state.in_(_OPEN))
        with self._database.write() as connection:
            connection.execute(change.values(values))
            return _run(connection, run_id)

    def reopen_run(
        self, run_id: str, owner: str | None = None, previous: str | None = None
    ) -> RunRecord:
        """Set a run to running, whether it has ended or not, to go on with it.

        Args:
            run_id: The run.
            owner: Who answers for it from now on; None keeps who did.
            previous: Change nothing unless this is its owner, so that of two who take a run over
                at once only one does.

        Returns:
            The run as it stands in the ledger.

        Raises:
            UnknownNameError: There is no such run.
        """
        values: dict[str, Any] = {"state": StepState.RUNNING.value, "finished_at": None}
        if owner is not None:
            values["owner"] = owner
        with self._database.write() as connection:
            change = update(runs).where(runs.c.run_id == run_id)
            if previous is not None:
                change = change.where(runs.c.owner == previous)
            connection.execute(change.values(values))
            return _run(connection, run_id)


def _run(connection: Connection, run_id: str) -> RunRecord:
    found = fetch_first(connection, RunRecord, select(runs).where(runs.c.run_id == run_id))
    if found is None:
        newest = select(runs.c.run_id).order_by(runs.c.created_at.desc()).limit(10)
        raise UnknownNameError(
            f"There is no run '{run_id}' in the ledger",
            nearest(run_id, connection.scalars(newest)),
        )
    return found


def _by_key(connection: Connection, key: str) -> RunRecord | None:
    return fetch_first(connection, RunRecord, select(runs).where(runs.c.key == key))
