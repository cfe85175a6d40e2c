"""The files of runs: their parts, the bytes of each, and what is gone."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from headrace.errors import LedgerError, removed
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.files.removal import GOING, disk_bytes
from headrace.ledger.ledger import open_ledger
from headrace.ledger.removals import RunSize
from headrace.ledger.rows import RunRecord
from headrace.states import BY_HAND, Removal

RECORD, CODE = "record", "code"
"""Parts that stay until a run is forgotten: it is described, compared and run again by them."""

_PART_OF = {
    "checkpoints": "checkpoints", "callbacks": "checkpoints", "predicted": "checkpoints",
    "history": "logs", "loggers": "logs", "attempts": "logs", "code": CODE,
    "recipe.json": RECORD, "site.json": RECORD, "request.json": RECORD, "provenance.json": RECORD,
    "prediction.json": RECORD, "working-tree.diff": RECORD, "code.json": RECORD,
    "recipe.source.json": RECORD, "suite.json": RECORD,
}  # fmt: skip
"""Parts by the names in the folder of a run or trial; `other` for all others."""

_RUN_ID = re.compile(rb"[\w.-]+-\d{8}-\d{6}-[0-9a-f]{8}(?!/code/)")
"""Not of its copy of the code: each run has its own."""


def parts_in(folder: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield the part and the path of all that lies in a run's folder, and in those of its trials.

    Paths are relative to the folder.
    """
    for name in _names(folder.path):
        if name != folder.trials.name:
            yield _part(name), name
            continue
        for trial in _names(folder.trials):
            for each in _names(folder.trials / trial):
                part = _part(each)
                yield "other" if part == RECORD else part, f"{name}/{trial}/{each}"


def _part(name: str) -> str:
    if name.startswith(GOING):
        name = name.removeprefix(GOING).rpartition("-")[0]
    return _PART_OF.get(name, "other")


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(each.name for each in folder.iterdir())
    return []


def measured(folder: RunFolder, leases: Iterable[str]) -> dict[str, int]:
    """Return the bytes on disk of a run by part; the folders of its leases count as logs."""
    counted: set[tuple[int, int]] = set()
    sizes = Counter[str]()
    for part, name in parts_in(folder):
        sizes[part] += disk_bytes(folder.path / name, counted)
    sizes["logs"] += sum(disk_bytes(each, counted) for each in leases)
    return {part: num_bytes for part, num_bytes in sizes.items() if num_bytes}


def note_sizes(run_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Measure runs that have ended, enter their sizes in the ledger, and return these."""
    ledger, ids = open_ledger(), [*run_ids]
    leases = ledger.leases_of(ids)
    sizes = {
        row.run_id: measured(
            RunFolder(Path(row.folder)), (each.folder for each in leases.get(row.run_id, ()))
        )
        for row in (ledger.runs(len(ids), run_ids=ids) if ids else ())
    }
    ledger.put_sizes(sizes)
    return sizes


def removal_of(record: RunRecord | RunSize) -> Removal | None:
    """Return what is gone of a run, None if nothing is; enter a folder that was removed by hand.

    A folder counts as removed only if the one above it is there: a file system may be missing.
    """
    folder, known = Path(record.folder), record.removed
    if known is not None and known.by != BY_HAND:
        return known
    if not record.folder or folder.exists() or not folder.parent.is_dir():
        return None
    if known is None:
        known = Removal(at=time.time(), by=BY_HAND, what="run")
        with suppress(LedgerError):  # a reader may not write in it
            open_ledger().set_removed(record.run_id, known)
    return known


def check_there(record: RunRecord, part: str = "run") -> None:
    """Raise if a part of a run that is needed is gone.

    Raises:
        RemovedError: It is.
    """
    gone = removal_of(record)
    if gone is not None and (gone.covers(part) or gone.by == BY_HAND):
        raise removed(record.run_id, gone, part)


def tombstone(dataset: Path) -> Path:
    """Return the file that says who removed a dataset; it counts only while the dataset is gone."""
    return dataset.with_name(f".{dataset.name}.removed")


def dataset_removal(place: str) -> Removal | None:
    """Return the removal of a packed dataset; None if it is there, or not of this machine."""
    path = Path(place)
    if "://" in place or path.exists() or not path.parent.is_dir():
        return None
    today = Removal(at=time.time(), by=BY_HAND, what="dataset")
    return read_record(tombstone(path), Removal) or today


def mentioned(folder: RunFolder) -> set[str]:
    """Return the ids of other runs that a run's record refers to, as by `train.init_from`."""
    files = (folder.recipe, folder.request, folder.source)
    found = {each.decode() for file in files for each in _RUN_ID.findall(read_bytes(file) or b"")}
    return found - {folder.run_id}


def check_mentioned(folder: RunFolder) -> None:
    """Raise if the checkpoints of a run that the record of another one refers to are gone.

    Raises:
        RemovedError: They are.
    """
    if run_ids := mentioned(folder):
        for record in open_ledger().runs(len(run_ids), run_ids=run_ids):
            check_there(record, "checkpoints")
