"""Attempts at steps in the ledger."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, select, update
from typing_extensions import Unpack

from headrace.errors import LedgerError, UnknownNameError
from headrace.ledger.records import AttemptChanges, AttemptRecord
from headrace.ledger.rows import Rows, changed, fetch, fetch_first
from headrace.ledger.tables import attempts, leases, runs
from headrace.states import StepState

_OPEN = tuple(state.value for state in StepState if not state.is_final)


class AttemptRows(Rows):
    """Enter, find and change attempts."""

    def add_attempt(self, record: AttemptRecord) -> AttemptRecord:
        """Enter an attempt, unless the run has this attempt at this step.

        Returns:
            The attempt as it stands in the ledger: the given one, or the one that was there.

        Raises:
            LedgerError: Its run or lease is not in the ledger, or its key names another attempt.
        """
        with self._database.write() as connection:
            self._insert(connection, attempts, record)
            found = _find(connection, record.run_id, record.step, record.attempt)
            if found is None:
                raise LedgerError(
                    f"Another attempt has the key '{record.key}'",
                    "A key is <run_id>/<step>/<attempt>.",
                )
            return found

    def attempts(self, run_id: str, step: str | None = None) -> tuple[AttemptRecord, ...]:
        """Attempts of a run in the order they were asked for.

        Args:
            run_id: The run.
            step: Only attempts at this step.
        """
        table = attempts.c
        query = _of(run_id, step).order_by(table.created_at, table.step, table.attempt)
        with self._database.read() as connection:
            return fetch(connection, AttemptRecord, query)

    def latest_attempt(self, run_id: str, step: str) -> AttemptRecord | None:
        """The attempt at a step with the highest number; None when there is none."""
        query = _of(run_id, step).order_by(attempts.c.attempt.desc())
        with self._database.read() as connection:
            return fetch_first(connection, AttemptRecord, query)

    def past_attempts(
        self, recipe_name: str, site_name: str, role: str, limit: int
    ) -> tuple[AttemptRecord, ...]:
        """Attempts that have ended, the newest first, whatever run they belong to.

        Args:
            recipe_name: Only those of runs of the recipe of this name.
            site_name: Only those on leases of this site.
            role: Only those on leases of this role.
            limit: Most attempts to give.
        """
        query = (
            select(attempts)
            .join(runs, runs.c.run_id == attempts.c.run_id)
            .join(leases, leases.c.lease_id == attempts.c.lease_id)
            .where(runs.c.recipe_name == recipe_name)
            .where(leases.c.site_name == site_name, leases.c.role == role)
            .where(attempts.c.state.not_in(_OPEN))
            .order_by(attempts.c.created_at.desc(), attempts.c.key.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return fetch(connection, AttemptRecord, query)

    def explain_attempt(self, run_id: str, step: str, attempt: int, message: str) -> None:
        """Say better why an attempt failed, also when it has ended."""
        table = attempts.c
        with self._database.write() as connection:
            connection.execute(
                update(attempts)
                .where(table.run_id == run_id, table.step == step, table.attempt == attempt)
                .values(message=message)
            )

    def set_attempt(
        self, run_id: str, step: str, attempt: int, **changes: Unpack[AttemptChanges]
    ) -> AttemptRecord:
        """Change an attempt; one that has ended stays as it is.

        Args:
            run_id: The run.
            step: The step.
            attempt: Number of the attempt.
            changes: New values.

        Returns:
            The attempt as it stands in the ledger.

        Raises:
            UnknownNameError: There is no such attempt.
            LedgerError: The lease is not in the ledger.
        """
        table = attempts.c
        with self._database.write() as connection:
            values = changed(_attempt(connection, run_id, step, attempt), {**changes})
            change = update(attempts).where(
                table.run_id == run_id,
                table.step == step,
                table.attempt == attempt,
                table.state.in_(_OPEN),
            )
            if values:
                connection.execute(change.values(values))
            return _attempt(connection, run_id, step, attempt)


def _of(run_id: str, step: str | None) -> Select[Any]:
    query = select(attempts).where(attempts.c.run_id == run_id)
    return query if step is None else query.where(attempts.c.step == step)


def _find(connection: Connection, run_id: str, step: str, attempt: int) -> AttemptRecord | None:
    query = _of(run_id, step).where(attempts.c.attempt == attempt)
    return fetch_first(connection, AttemptRecord, query)


def _attempt(connection: Connection, run_id: str, step: str, attempt: int) -> AttemptRecord:
    found = _find(connection, run_id, step, attempt)
    if found is None:
        raise UnknownNameError(
            f"The ledger has no attempt {attempt} at step '{step}' of run '{run_id}'",
            "List the runs with `headrace runs`.",
        )
    return found
