"""The files of runs: the bytes of their parts, and what is gone."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.errors import LedgerError, removed
from headrace.files.atomic import read_bytes
from headrace.files.layout import RunFolder
from headrace.files.removal import disk_bytes
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.usage_rows import at_most
from headrace.states import BY_HAND, Removal

RECORD = "records"
"""The part that stays until a run is forgotten: it is described, compared and run again by it."""

_PARTS = {
    "checkpoints": "checkpoints", "callbacks": "checkpoints", "predicted": "checkpoints",
    "history": "logs", "loggers": "logs", "attempts": "logs", "code": RECORD,
}  # fmt: skip
"""Parts of a run or trial by their folders; other folders are `other`, files are the record."""

_NAME = re.compile(rb"[\w.-]+-(?:\d{8}-\d{6}-[0-9a-f]{8}(?!/code/|/[\w.]+\.json\b)|[0-9a-f]{12}\b)")
"""Names of runs, except in paths of their records and copies of code; and names of datasets."""


def removable(folder: RunFolder) -> list[Path]:
    """Return the folders, and links to folders, that go if a run is removed."""
    found = [*folder.path.iterdir()] if folder.path.is_dir() else []
    return [each for each in found if each.is_dir() and each != folder.code]


def sizes_of(rows: Sequence[RunRecord]) -> dict[str, dict[str, int]]:
    """Measure the bytes on disk of runs by part; the folders of their leases count as logs."""
    leases, found = open_ledger().leases_of([row.run_id for row in rows]), {}
    for row in rows:
        counted, sizes = set[tuple[int, int]](), Counter[str]()
        for part, path in _parts(Path(row.folder)):
            sizes[part] += disk_bytes(path, counted)
        for lease in leases.get(row.run_id, ()):
            sizes["logs"] += disk_bytes(lease.folder, counted)
        found[row.run_id] = dict(+sizes)
    return found


def _parts(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir() if os.access(folder, os.R_OK) else ():  # not another user's
        if path.name == "trials":
            for trial in path.iterdir():  # a link leads to a part of the suite
                yield from () if trial.is_symlink() else _parts(trial)
        else:
            yield _PARTS.get(path.name, "other" if path.is_dir() else RECORD), path


def note_sizes(*run_ids: str) -> None:
    """Measure runs that have ended, and enter their sizes in the ledger."""
    ledger = open_ledger()
    for some in at_most(run_ids):
        ledger.put_sizes(sizes_of(ledger.runs_of(some)))


def removal_of(record: RunRecord) -> Removal | None:
    """Return the removal of a run, None if it is there; enter a folder that was removed by hand.

    A folder counts as removed only if the one above it is there: a file system may be missing.
    """
    known, above = record.removed, os.path.dirname(record.folder)
    if known is not None and known.by != BY_HAND:
        return known
    if os.path.exists(record.folder) or not os.path.isdir(above):
        return None
    if known is None:
        known = Removal(at=time.time(), by=BY_HAND)
        with suppress(LedgerError):  # a reader may not write in it
            open_ledger().set_removed(record.run_id, known)
            open_ledger().put_sizes({record.run_id: {}})
    return known


def check_there(record: RunRecord, name: str = "") -> None:
    """Raise `UnknownNameError` if the files of a run, or of its trial of a name, were removed."""
    if (gone := removal_of(record)) is not None:
        raise removed(name or record.run_id, gone)


def mentioned(folder: RunFolder) -> set[str]:
    """Return names of other runs and of datasets in a run's record, as of `train.init_from`."""
    is_readable = os.access(folder.path, os.X_OK)
    files = (folder.recipe, folder.request, folder.source) if is_readable else ()
    found = {each.decode() for file in files for each in _NAME.findall(read_bytes(file) or b"")}
    return found - {folder.run_id}
