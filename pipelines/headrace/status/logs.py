"""Logs of a run's steps, and its report: files that are found by their names in the ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import UnknownNameError, nearest
from headrace.files.layout import RunFolder
from headrace.files.sharing import open_to_read
from headrace.ledger.rows import AttemptRecord
from headrace.record import Record
from headrace.runs.names import there
from headrace.status.run import RunRows

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


def log_files(rows: RunRows) -> Iterator[tuple[AttemptRecord, Path]]:
    """Yield the logs of attempts of a run or trial, in their order; links are left out."""
    folders = rows.folders()
    for row in rows.attempts:
        if row.key in folders:
            logs = folders[row.key].logs
            yield from ((row, file) for file in sorted(logs.glob("*.log")) if not file.is_symlink())


def log_page(run_id: str, step: str, attempt: int, name: str, lines: int) -> LogPage:
    """Return the last lines of a log.

    Raises:
        UnknownNameError: No run, attempt or log has that name; paths are not accepted.
    """
    there(run_id)
    found = log_files(RunRows.named(run_id))
    files = {file.stem: file for row, file in found if (row.step, row.attempt) == (step, attempt)}
    if name not in files:
        what = f"Attempt {attempt} at step '{step}' of run {run_id} has no log '{name}'"
        raise UnknownNameError(what, nearest(name, files))
    return _tail(files[name], lines)


def report_file(run_id: str) -> Path:
    """Return the report of a run's evaluation or of a suite, one HTML file inside its folder.

    Raises:
        UnknownNameError: No run or trial has that name, or it has no report.
    """
    there(run_id)
    rows = RunRows.named(run_id)
    file = _reported(rows)
    if file is None or not file.resolve().is_relative_to(Path(rows.run.folder).resolve()):
        raise UnknownNameError(f"Run {run_id} has no report", "Evaluations and suites have one.")
    return file


def report_address(rows: RunRows) -> str:
    """Return the report's address, relative to the pages' address; empty without a report."""
    return f"data/run/report?id={rows.run.run_id}" if _reported(rows) else ""


def _reported(rows: RunRows) -> Path | None:
    """Return the report that the newest attempt with one names, else its own; None without."""
    named = [Path(str(row.outputs["report"])) for row in rows.attempts if row.outputs.get("report")]
    files = (*reversed(named), RunFolder(Path(rows.run.folder)).report_file)
    return next((file for file in files if file.is_file()), None)


def _tail(file: Path, lines: int) -> LogPage:
    with open_to_read(file) as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - _MOST_BYTES, 0))
        found = log.read(_MOST_BYTES).decode(errors="replace").splitlines()
    is_cut = size > _MOST_BYTES or len(found) > lines
    return LogPage(name=file.stem, lines=tuple(found[-lines:]), is_whole=not is_cut)
