"""Runs whose expected end has moved, each move told once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.states import StepState

SHARE = 0.25
"""A move counts when it is more than this share of what the run was to take in all …"""

LEAST_S = 600.0
"""… and more than this."""


class EtaTold(Record):
    """`eta.json` of a run: the end that was told last."""

    ends_at: float
    """Seconds since the epoch."""


class EtaChange(Record):
    """An expected end that has moved."""

    run_id: str
    folder: str
    """Folder of the run."""
    recipe: str
    site: str
    before: float
    """The end as it was told last, or as it was when the run began, seconds since the epoch."""
    now: float
    """The end as it is expected now."""

    @property
    def words(self) -> str:
        """In a line, with the times here."""
        moved_min = (self.now - self.before) / 60
        how = f"{abs(moved_min):,.0f} min {'later' if moved_min > 0 else 'earlier'}"
        ends = time.strftime("%d %b %H:%M %Z", time.localtime(self.now))
        return f"{self.recipe} on {self.site} ends {how} than expected: {ends} (run {self.run_id})"


def eta_changes() -> Iterator[EtaChange]:
    """Moves that were not told yet, of runs that go on; one is told when the next is asked for."""
    from headrace.status.run_details import run_details  # not while Airflow parses DAGs

    for record in open_ledger().runs(states=(StepState.RUNNING,)):
        ahead = run_details(record.run_id).ahead
        if ahead is None or ahead.predicted_s is None or ahead.eta_s is None:
            continue
        folder = RunFolder(Path(record.folder))
        told = read_record(folder.eta, EtaTold)
        before = record.created_at + ahead.predicted_s if told is None else told.ends_at
        now = time.time() + ahead.eta_s
        if abs(now - before) > max(SHARE * ahead.predicted_s, LEAST_S):
            yield EtaChange(
                run_id=record.run_id,
                folder=record.folder,
                recipe=record.recipe_name,
                site=record.site_name,
                before=before,
                now=now,
            )
            write_record(folder.eta, EtaTold(ends_at=now))
