"""What fills the disk: one table of kinds of files, where they lie, and when they may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.builds import builds_folder
from headrace.errors import HeadraceError
from headrace.files.atomic import read_text
from headrace.files.layout import SiteFolder
from headrace.files.removal import disk_bytes
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.home import home
from headrace.recipe.load import available, load_site
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.runs.on_disk import note_sizes, sizes_of
from headrace.staging.cache import copies_of

MOST = 10**7
"""More runs than a ledger has."""


class Item(Record):
    """A run, dataset, copy, ...: what is listed, and removed as a whole."""

    kind: str
    """`run`, or a kind of `KINDS`."""
    name: str
    """A run's id, or a path or URL."""
    num_bytes: int
    """Bytes on disk; of a dataset in an object store those of its records."""
    used_at: float = 0.0
    """When it was made or last used, seconds since the epoch; 0 for what a removal has left."""
    why: str = ""
    """Why it may go."""
    stays: str = ""
    """Why it was not removed; empty if it was."""


class Places(NamedTuple):
    """Where sites keep files."""

    folders: Sequence[SiteFolder]
    sites: Sequence[Site]

    @classmethod
    def of(cls, rows: Iterable[RunRecord], site: str = "") -> Places:
        """Return the places of a site, or of all, by their files and by the folders of runs."""
        sites = [each for each in loaded_sites() if site in ("", each.name)]
        paths = {Path(row.folder).parents[1] for row in rows if site in ("", row.site_name)}
        paths |= {Path(each.folder) for each in sites}
        return cls([SiteFolder(each) for each in sorted(paths)], sites)

    def datasets(self) -> Iterator[tuple[Path, float]]:
        """Yield datasets; of those in object stores the folders of their records."""
        return _in(*(each.datasets for each in self.folders))

    def images(self) -> Iterator[tuple[Path, float]]:
        """Yield container images."""
        return _in(*(each.path / "images" for each in self.folders))

    def copies(self) -> Iterator[tuple[Path, float]]:
        """Yield the staged copies on this machine that are not in use."""
        tiers = {tier.folder: tier for site in self.sites for tier in site.tiers}
        for copy in copies_of([*tiers.values()]):
            yield copy.path, copy.last_used_at or copy.path.stat().st_mtime


def loaded_sites() -> list[Site]:
    """Return the sites that can be loaded here."""
    sites = []
    for name in available("sites"):
        with suppress(HeadraceError):  # of another account, or being written
            sites.append(load_site(name))
    return sites


class Kind(NamedTuple):
    """A kind of files."""

    where: Callable[[Places], Iterable[tuple[Path, float]]]
    """Yields their paths, and when they were made or last used."""
    goes: Literal["unreferenced", "old", "old, while no run is open", "never"]
    """When they may be removed."""


CACHE: Literal["old, while no run is open"] = "old, while no run is open"
"""When files may go that are made again when they are needed."""

KINDS = {
    "dataset": Kind(Places.datasets, "unreferenced"),
    "staged copy": Kind(Places.copies, "old"),
    "environment": Kind(lambda _: _in(home() / "environments"), CACHE),
    "image": Kind(Places.images, CACHE),
    "compiled extension": Kind(lambda _: _in(builds_folder().parent), CACHE),
    "Airflow log": Kind(
        lambda _: _in(*(home() / "airflow" / "logs" / "tasks").glob("dag_id=*")), CACHE
    ),
    "Airflow database": Kind(lambda _: _files(home() / "airflow", "airflow.db*"), "never"),
    "ledger": Kind(lambda _: _files(home(), "ledger.db*"), "never"),
}
"""All kinds of files but those of runs, which are a kind for each part."""


def items(places: Places) -> Iterator[Item]:
    """Yield what is not of a run."""
    for kind, (where, _) in KINDS.items():
        for path, used_at in where(places):
            url = (read_text(path / "url") or "").strip() if kind == "dataset" else ""
            size = disk_bytes(path, set())
            yield Item(kind=kind, name=url or str(path), num_bytes=size, used_at=used_at)


class DiskRow(Record):
    """Files of one kind."""

    kind: str
    number: int
    """How many there are: runs with files of this kind, datasets, copies, ...."""
    num_bytes: int


class DiskUse(Record):
    """What fills the disk; bytes are those that files take, a file with two names once."""

    rows: tuple[DiskRow, ...]
    """By kind, with a total."""
    items: tuple[Item, ...]
    """Runs, datasets, copies, ..., the largest first."""


def disk_use() -> DiskUse:
    """Measure what headrace's files take on disk.

    Side effects: sizes of ended runs that are not in the ledger are entered there, once.
    """
    runs = measured_runs()
    going_on = sizes_of([row for row in runs if not row.state.is_final])
    found, by_kind = list[Item](), list[tuple[str, int]]()
    for row in runs:
        sizes = going_on.get(row.run_id) or row.sizes or {}
        by_kind += [(f"{part} of runs", num_bytes) for part, num_bytes in sizes.items()]
        found.append(Item(kind="run", name=row.run_id, num_bytes=sum(sizes.values())))
    others = [*items(Places.of(runs))]
    by_kind += [(each.kind, each.num_bytes) for each in others]
    number, total = Counter(kind for kind, _ in by_kind), Counter[str]()
    for kind, num_bytes in by_kind:
        total[kind] += num_bytes
    rows = [DiskRow(kind=each, number=number[each], num_bytes=total[each]) for each in total]
    everything = DiskRow(kind="total", number=len(runs) + len(others), num_bytes=total.total())
    largest = sorted([*found, *others], key=lambda item: (-item.num_bytes, item.name))
    return DiskUse(rows=(*rows, everything), items=tuple(largest))


def measured_runs() -> tuple[RunRecord, ...]:
    """Return all runs, the newest first; measure ended ones that are new, gone or back again."""
    ledger = open_ledger()
    runs = ledger.runs(MOST)
    ended = (row for row in runs if row.state.is_final)
    unknown = [row.run_id for row in ended if bool(row.sizes) != Path(row.folder).exists()]
    note_sizes(*unknown)
    return ledger.runs(MOST) if unknown else runs


def _in(*folders: Path) -> Iterator[tuple[Path, float]]:
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.name.endswith((".lock", ".removed")):
                yield path, 0.0 if path.name.endswith(".partial") else path.lstat().st_mtime


def _files(folder: Path, names: str) -> Iterator[tuple[Path, float]]:
    for path in folder.glob(names):
        yield path, path.stat().st_mtime
