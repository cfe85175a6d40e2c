"""Carry a plan of removal out; interrupted at any point and begun again, it has the same end.

A run that goes is entered in the ledger first, from when on nothing can resume or use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headrace.cleanup import places
from headrace.cleanup.plan import INTERRUPTED, CleanItem, CleanPlan, might_pack
from headrace.errors import HeadraceError, UserError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.files.removal import finish_removals, remove
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.objects.store import is_remote
from headrace.record import Record
from headrace.runs.audit import Actor, note
from headrace.runs.on_disk import (
    CODE,
    RECORD,
    mentioned,
    note_sizes,
    parts_in,
    removal_of,
    tombstone,
)
from headrace.staging.cache import evict
from headrace.staging.staged_folder import StagedFolder
from headrace.states import Removal

_DAY_S = 86400.0


class Cleaned(Record):
    """What became of an item of a plan."""

    item: CleanItem
    is_gone: bool
    why_not: str = ""
    """Why it is still there; empty if it is gone."""


def carry_out(plan: CleanPlan, by: Actor) -> Iterator[Cleaned]:
    """Remove what a plan lists, and yield what became of each item.

    What has been used, resumed or kept since the plan was made stays. A failure of one item keeps
    no other from its removal.
    """
    for item in plan.items:
        try:
            why_not = _remove(item, by)
        except (HeadraceError, OSError) as error:
            why_not = str(error)
        if not why_not:
            note(
                by, "clean", item.name if item.what in _OF_RUNS else "", f"{item.what} {item.name}"
            )
        yield Cleaned(item=item, is_gone=not why_not, why_not=why_not)


_OF_RUNS = ("runs", "checkpoints", "logs")


def _remove(item: CleanItem, by: Actor) -> str:
    """Remove one item; return why it stays, or an empty string."""
    path = Path(item.name)
    if item.what in _OF_RUNS:
        return _remove_run(item, by)
    if item.what == "staged":
        is_gone = evict(StagedFolder(path, ""))
        return "" if is_gone else "it is in use"
    if is_remote(item.name):
        packings = places.datasets(open_ledger().packings(places.MOST))[item.name]
        store, is_whole = places.store_of(item.name, packings[0]), item.what == "datasets"
        if is_whole and might_pack():
            return "a run has begun that may use it"
        store.purge(keeps_newest=not is_whole, older_than_s=0.0 if is_whole else _DAY_S)
        return ""
    if item.why == INTERRUPTED:
        finish_removals(path.parent)
        return ""
    if item.what == "datasets":
        gone = Removal(at=time.time(), by=by.user, what="dataset")
        is_gone = remove(path.parent, path.name, may_go=lambda: not might_pack())
        if is_gone:
            write_record(tombstone(path), gone)
        return "" if is_gone else "a run has begun that may use it"
    return "" if remove(path.parent, path.name) else "it is gone already"


def _remove_run(item: CleanItem, by: Actor) -> str:
    ledger = open_ledger()
    record = ledger.run(item.name)
    before = record.removed
    if item.why == INTERRUPTED and before is not None:
        _remove_parts(record, before)
        return ""
    what: str = "run" if item.what == "runs" else item.what
    if before is not None and what != "run":
        what = ", ".join(sorted({*before.what.split(", "), what}))
    gone = Removal(at=time.time(), by=by.user, what=what)
    if not record.state.is_final or not ledger.begin_removal(record, gone):
        return "it has begun again"
    if what != "logs" and _is_referred_to(record):
        ledger.set_removed(record.run_id, before)
        return "another run refers to it now"
    try:
        _remove_parts(record, gone)
    except HeadraceError:
        if note_sizes([record.run_id])[record.run_id] == record.sizes:  # all is there
            ledger.set_removed(record.run_id, before)
        raise
    return ""


def _is_referred_to(record: RunRecord) -> bool:
    """Whether a run that is open refers to a run; `create_run` looks for its removal after that."""
    active = (row for row in open_ledger().runs(places.MOST) if not row.state.is_final)
    return any(record.run_id in mentioned(RunFolder(Path(row.folder))) for row in active)


def _remove_parts(record: RunRecord, gone: Removal) -> None:
    """Remove the parts of a run that are entered as gone, and enter the bytes that are left."""
    folder, ledger = RunFolder(Path(record.folder)), open_ledger()
    site, name = folder.path.parents[1], f"{folder.path.parent.name}/{folder.path.name}"
    for part, path in [*parts_in(folder)]:
        if part not in (RECORD, CODE) and gone.covers(part):
            remove(site, f"{name}/{path}")
    if gone.covers("logs"):
        for lease in ledger.leases(run_id=record.run_id):
            place = Path(lease.folder)
            if place.parent == site / "leases":
                remove(site, f"leases/{place.name}")
        finish_removals(site / "leases")
    note_sizes([record.run_id])


def forget(run_id: str, by: Actor) -> None:
    """Leave a run whose files are gone out of lists, and remove its record and copy of the code.

    Its rows in the ledger stay: money and metrics still count.

    Raises:
        UserError: Its files are there.
    """
    record = open_ledger().run(run_id)
    gone = removal_of(record)
    if gone is None or gone.what != "run":
        raise UserError(
            f"Run {run_id} still has its files: {record.folder}",
            f"Remove them first: headrace clean {run_id}",
        )
    folder = Path(record.folder)
    remove(folder.parents[1], f"{folder.parent.name}/{folder.name}")
    open_ledger().set_removed(run_id, gone, forget=True)
    open_ledger().put_sizes({run_id: {}})
    note(by, "forget", run_id)
