"""Logs of a run's steps, and its report: files that are found by their names in the ledger."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headrace.errors import UnknownNameError, nearest
from headrace.files.layout import LeaseFolder
from headrace.files.sharing import open_to_read
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord
from headrace.record import Record
from headrace.runs.on_disk import there

MOST_LINES = 2000
_MOST_BYTES = 2**20


class LogName(Record):
    """A log of an attempt."""

    step: str
    attempt: int
    name: str
    """As in `driver` or `rank-0`."""


class LogPage(Record):
    """The end of a log."""

    name: str
    lines: tuple[str, ...]
    is_whole: bool
    """Whether these are all lines."""


def log_files(
    attempts: Iterable[AttemptRecord], leases: Sequence[LeaseRecord]
) -> Iterator[tuple[AttemptRecord, Path]]:
    """Yield the logs of attempts of a run, in their order; links are left out."""
    folders = {row.lease_id: LeaseFolder(Path(row.folder)) for row in leases}
    for row in attempts:
        if row.number is not None:
            logs = folders[row.lease_id].step(row.number).logs
            yield from ((row, file) for file in sorted(logs.glob("*.log")) if not file.is_symlink())


def log_page(run_id: str, step: str, attempt: int, name: str, lines: int) -> LogPage:
    """Return the last lines of a log.

    Raises:
        UnknownNameError: No run, attempt or log has that name; paths are not accepted.
    """
    ledger = open_ledger()
    there(run_id)
    attempts = (row for row in ledger.attempts(run_id, step) if row.attempt == attempt)
    found = log_files(attempts, ledger.leases(run_id=run_id))
    files = {file.stem: file for _, file in found}
    if name not in files:
        what = f"Attempt {attempt} at step '{step}' of run {run_id} has no log '{name}'"
        raise UnknownNameError(what, nearest(name, files))
    return _tail(files[name], lines)


def report_file(run_id: str) -> Path:
    """Return the file of a run's evaluation report, one HTML file inside the run's folder.

    Raises:
        UnknownNameError: No run has that id, or it has no report.
    """
    record = there(run_id)
    file = _reported(open_ledger().attempts(run_id))
    if file is None or not file.resolve().is_relative_to(Path(record.folder).resolve()):
        raise UnknownNameError(f"Run {run_id} has no report", "Evaluation writes it, at its end.")
    return file


def report_address(run_id: str, attempts: Sequence[AttemptRecord]) -> str:
    """Return the report's address, relative to the pages' address; empty without a report."""
    return f"data/run/report?id={run_id}" if _reported(attempts) else ""


def _reported(attempts: Sequence[AttemptRecord]) -> Path | None:
    """Return the report that the newest attempt with one names, if the file exists."""
    named = [Path(str(row.outputs["report"])) for row in attempts if row.outputs.get("report")]
    return next((file for file in reversed(named) if file.is_file()), None)


def _tail(file: Path, lines: int) -> LogPage:
    with open_to_read(file) as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - _MOST_BYTES, 0))
        found = log.read(_MOST_BYTES).decode(errors="replace").splitlines()
    is_cut = size > _MOST_BYTES or len(found) > lines
    return LogPage(name=file.stem, lines=tuple(found[-lines:]), is_whole=not is_cut)
