"""What the files of runs take on disk, and which of them are gone."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import bindparam, update

from headrace.ledger.database import LedgerPart
from headrace.ledger.rows import RunRecord
from headrace.states import Removal, StepState

_ENDED = tuple(state for state in StepState if state.is_final)


class Removals(LedgerPart):
    """The part of the ledger about the files of runs."""

    def put_sizes(self, sizes: Mapping[str, dict[str, int]]) -> None:
        """Enter bytes by part, by run."""
        change = update(RunRecord.__table__).where(RunRecord.run_id == bindparam("of"))  # type: ignore[arg-type]
        rows = [{"of": run_id, "sizes": each} for run_id, each in sizes.items()]
        with self._database.write() as session:
            session.connection().execute(change, rows)

    def set_removed(
        self, run_id: str, removal: Removal | None, *, is_forgotten: bool = False
    ) -> bool:
        """Enter the removal of an ended run; return whether it had ended.

        From then on `reopen_run` refuses the run. Lists leave out a forgotten one.
        """
        change = update(RunRecord).filter_by(run_id=run_id).where(RunRecord.state.in_(_ENDED))
        with self._database.write("runs") as session:
            values = change.values(removed=removal, is_forgotten=is_forgotten)
            return bool(session.execute(values).rowcount)  # type: ignore[attr-defined]
