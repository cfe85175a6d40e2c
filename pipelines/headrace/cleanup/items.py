"""What fills the disk: one table of kinds of files, where they lie, and when they may go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.builds import builds_folder
from headrace.files.atomic import read_text
from headrace.files.locks import last_used_at
from headrace.files.removal import disk_bytes
from headrace.files.tiers import folder_of
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.home import home
from headrace.recipe.teams import known_sites
from headrace.record import Record
from headrace.runs.on_disk import note_sizes, sizes_of
from headrace.runs.parts import suite_of_part

MOST = 10**7
"""More runs than a ledger has."""

_BESIDE = (".lock", ".use", ".reserved")
"""Ends of names of files beside datasets and copies."""


class FileKind(NamedTuple):
    """A kind of files."""

    where: Literal["home", "builds", "site", "tier"]
    names: str
    """Pattern of their paths below that folder, or below that of each site or tier."""
    goes: Literal["unused", "old", "idle", "never"]
    """When they may be removed: if no run that stays needs them, if they are old, if they are old
    while no run is open, or never."""


KINDS = {
    "dataset": FileKind("site", "datasets/*", "unused"),
    "staged copy": FileKind("tier", "datasets/*", "idle"),
    "lease": FileKind("site", "leases/.*.partial", "old"),  # left by removals; others are of runs
    "image": FileKind("site", "images/*", "idle"),
    "environment": FileKind("home", "environments/*", "idle"),
    "compiled extension": FileKind("builds", "*", "idle"),
    "Airflow log": FileKind("home", "airflow/logs/tasks/dag_id=*/run_id=*", "idle"),
    "Airflow database": FileKind("home", "airflow/airflow.db*", "never"),
    "ledger": FileKind("home", "ledger.db*", "never"),
}
"""All kinds of files but those of runs."""


class Item(Record):
    """Files of one kind, under one name."""

    kind: str
    """One of `KINDS`, `run`, or a part of runs."""
    name: str
    """A run's id, or a path or URL."""
    num_bytes: int
    """Bytes on disk; of a dataset in an object store those of its records."""
    used_at: float = 0.0
    """When it was made or last used, seconds since the epoch; 0 for what a removal has left."""
    why: str = ""
    """Why it may go."""
    stays: str = ""
    """Why it stays nevertheless; empty if it goes."""


def measure() -> list[Item]:
    """Measure what headrace's files take on disk: the parts of runs, then all other kinds.

    Side effects: sizes of ended runs that are not in the ledger are entered there, once.
    """
    rows = measured_runs()
    going_on = sizes_of([row for row in rows if not row.state.is_final])
    parts = [
        Item(
            kind=f"{part} of runs",
            name=suite_of_part(row.run_id) or row.run_id,
            num_bytes=num_bytes,
        )
        for row in rows
        for part, num_bytes in going_on.get(row.run_id, row.sizes or {}).items()
    ]
    return [*parts, *others(rows)]


def measured_runs() -> tuple[RunRecord, ...]:
    """Return all runs, the newest first; ended ones of unknown size are measured."""
    rows = open_ledger().runs(MOST)
    ended = (row for row in rows if row.state.is_final and not row.sizes)
    unknown = [row.run_id for row in ended if os.access(row.folder, os.R_OK)]
    note_sizes(*unknown)
    return open_ledger().runs(MOST) if unknown else rows


def others(rows: Iterable[RunRecord], site: str = "") -> Iterator[Item]:
    """Yield what is not of a run, of one site or all; runs are read for the folders of sites."""
    sites = [each for each in known_sites().values() if site in ("", each.name)]
    of_runs = {Path(row.folder).parents[1] for row in rows if site in ("", row.site_name)}
    folders = {
        "home": {home()},
        "builds": {builds_folder()},
        "site": of_runs | {Path(each.folder) for each in sites},
        "tier": {folder_of(tier) for each in sites for tier in each.tiers},
    }
    for kind, (where, names, _) in KINDS.items():
        for path in (path for folder in sorted(folders[where]) for path in folder.glob(names)):
            if path.name.endswith(_BESIDE):
                continue
            url = read_text(path / "url") if kind == "dataset" else None
            used_at = max(path.lstat().st_mtime, last_used_at(path.with_suffix(".use")))
            yield Item(
                kind=kind,
                name=url.strip() if url else str(path),
                num_bytes=disk_bytes(path, set()),
                used_at=0.0 if path.suffix == ".partial" else used_at,
            )
