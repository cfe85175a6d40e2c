"""Runs whose expected end has moved; each move is reported once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.states import StepState

SHARE, LEAST_S = 0.25, 600.0
"""A move counts if it exceeds this share of the run's predicted duration, and these seconds."""


class ReportedEta(Record):
    """`eta.json` of a run: the expected end that was reported last."""

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
    """The end that was reported last, or expected at the start, seconds since the epoch."""
    now: float
    """The end as it is expected now."""

    @property
    def words(self) -> str:
        """In a line, with local times."""
        moved_min = (self.now - self.before) / 60
        how = f"{abs(moved_min):,.0f} min {'later' if moved_min > 0 else 'earlier'}"
        ends = time.strftime("%d %b %H:%M %Z", time.localtime(self.now))
        return f"{self.recipe} on {self.site} ends {how} than expected: {ends} (run {self.run_id})"


def eta_changes() -> Iterator[EtaChange]:
    """Yield unreported moves of runs that go on; a move is reported when the next is requested."""
    from headrace.status.run_details import run_details  # not while Airflow parses DAGs

    for record in open_ledger().runs(states=(StepState.RUNNING,)):
        ahead = run_details(record.run_id).ahead
        if ahead is None or ahead.predicted_s is None or ahead.eta_s is None:
            continue
        folder = RunFolder(Path(record.folder))
        reported = read_record(folder.eta, ReportedEta)
        before = reported.ends_at if reported else record.created_at + ahead.predicted_s
        now = time.time() + ahead.eta_s
        if abs(now - before) > max(SHARE * ahead.predicted_s, LEAST_S):
            where = {"folder": record.folder, "site": record.site_name}
            names = {"run_id": record.run_id, "recipe": record.recipe_name, **where}
            yield EtaChange(**names, before=before, now=now)
            write_record(folder.eta, ReportedEta(ends_at=now))
