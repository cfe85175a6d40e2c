"""What the files of runs take on disk, and which of them are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import bindparam, select, update

from headrace.ledger.database import LedgerPart
from headrace.ledger.rows import RunRecord
from headrace.states import Removal, StepState


class RunSize(NamedTuple):
    """A run and its size."""

    run_id: str
    recipe_name: str
    site_name: str
    folder: str
    state: StepState
    sizes: dict[str, int] | None
    removed: Removal | None


class Removals(LedgerPart):
    """The part of the ledger about the files of runs."""

    def run_sizes(self) -> tuple[RunSize, ...]:
        """Return all runs, the newest first."""
        columns = (getattr(RunRecord, name) for name in RunSize._fields)
        query = select(*columns).order_by(RunRecord.created_at.desc())
        with self._database.read() as session:
            return tuple(RunSize(*row) for row in session.execute(query))

    def put_sizes(self, sizes: Mapping[str, dict[str, int]]) -> None:
        """Enter bytes by part, by run."""
        if sizes:
            table = RunRecord.__table__
            change = update(table).where(table.c.run_id == bindparam("of"))  # type: ignore[arg-type]
            rows = [{"of": run_id, "sizes": each} for run_id, each in sizes.items()]
            with self._database.write() as session:
                session.connection().execute(change, rows)

    def begin_removal(self, record: RunRecord, removal: Removal) -> bool:
        """Enter that parts of an ended run go, unless it has changed since the record was read.

        `reopen_run` refuses the run from then on. Return whether it is entered.
        """
        with self._database.write() as session:
            now = session.get_one(RunRecord, record.run_id, with_for_update=True)
            is_same = (now.finished_at, now.removed) == (record.finished_at, record.removed)
            if is_same and now.state.is_final:
                now.removed = removal
            return is_same and now.state.is_final

    def set_removed(self, run_id: str, removal: Removal | None, *, forget: bool = False) -> None:
        """Enter what is gone of a run; with `forget`, lists leave it out."""
        change = update(RunRecord).filter_by(run_id=run_id)
        with self._database.write() as session:
            session.execute(change.values(removed=removal, is_forgotten=forget))
