"""What fills the disk. Sizes of ended runs are in the ledger: only what may change is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from headrace.cleanup import places
from headrace.files.layout import RunFolder
from headrace.files.removal import disk_bytes
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.ledger.removals import RunSize
from headrace.objects.store import is_remote
from headrace.recipe.home import home
from headrace.record import Record
from headrace.runs.on_disk import CODE, RECORD, measured, note_sizes, removal_of

_AT_ONCE = 200
_TITLES = {
    "checkpoints": "checkpoints of runs", "logs": "logs of runs", CODE: "copies of code",
    RECORD: "records of runs", "other": "other files of runs",
}  # fmt: skip


class DiskRow(Record):
    """Files of one kind."""

    what: str
    number: int
    """How many there are: runs with files of this kind, datasets, copies, …."""
    num_bytes: int


class NamedSize(Record):
    """A run or dataset."""

    name: str
    num_bytes: int


class DiskUse(Record):
    """What fills the disk; bytes are those that files take, a file with two names once."""

    rows: tuple[DiskRow, ...]
    total: int
    """Bytes of all rows; object stores are not among them."""
    runs: tuple[NamedSize, ...]
    """The largest first."""
    datasets: tuple[NamedSize, ...]
    """The largest first."""
    stores: tuple[NamedSize, ...]
    """Datasets in object stores, by URL."""


def disk_use(*, remote: bool = False) -> DiskUse:
    """Measure what headrace's files take on disk.

    Side effects: sizes of ended runs that are not in the ledger are entered there, once.

    Args:
        remote: Whether object stores are asked, for all versions and unfinished uploads; otherwise
            sizes of datasets in these are as packing recorded them.
    """
    known, rows = places.sites(), open_ledger().run_sizes()
    folders = places.site_folders((row.folder for row in rows), known)
    by_run = dict(_sizes(rows))
    parts, count = Counter[str](), Counter[str]()
    for sizes in by_run.values():
        parts.update(sizes)
        count.update(sizes.keys())
    found = [(title, count[part], parts[part]) for part, title in _TITLES.items()]
    packed = places.datasets(open_ledger().packings(places.MOST))
    local = {path: disk_bytes(path, set()) for each in folders for path in _in(each.datasets)}
    stored = {
        url: _recorded(url, runs, remote=remote) for url, runs in packed.items() if is_remote(url)
    }
    found.append(("datasets", len(local), sum(local.values())))
    copies = [disk_bytes(each.path, set()) for each in places.staged(known)]
    found.append(("staged copies", len(copies), sum(copies)))
    for title, paths in places.caches(folders).items():
        found.append((title, len(paths), _all(paths)))
    found.append(("Airflow's database", 1, _all((home() / "airflow").glob("airflow.db*"))))
    found.append(("ledger", 1, _all(home().glob("ledger.db*"))))
    return DiskUse(
        rows=tuple(DiskRow(what=a, number=b, num_bytes=c) for a, b, c in found if c),
        total=sum(num_bytes for _, _, num_bytes in found),
        runs=_largest((run_id, sum(sizes.values())) for run_id, sizes in by_run.items()),
        datasets=_largest((str(path), num_bytes) for path, num_bytes in local.items()),
        stores=_largest(stored.items()),
    )


def _sizes(rows: Sequence[RunSize]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the sizes of runs; those of ended ones that are unknown are measured and entered."""
    leases = open_ledger().leases_of([row.run_id for row in rows if not row.state.is_final])
    unknown = []
    for row in rows:
        gone = removal_of(row)
        if not row.state.is_final:
            folders = (each.folder for each in leases.get(row.run_id, ()))
            yield row.run_id, measured(RunFolder(Path(row.folder)), folders)
        elif row.sizes is None or (gone is not None and row.removed is None):
            unknown.append(row.run_id)
        else:
            yield row.run_id, row.sizes
    left = iter(unknown)
    while some := [*islice(left, _AT_ONCE)]:
        yield from note_sizes(some).items()


def _in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _all(paths: Iterable[Path]) -> int:
    counted: set[tuple[int, int]] = set()
    return sum(disk_bytes(path, counted) for path in paths)


def _largest(sizes: Iterable[tuple[str, int]]) -> tuple[NamedSize, ...]:
    found = sorted(sizes, key=lambda each: (-each[1], each[0]))
    return tuple(NamedSize(name=name, num_bytes=num_bytes) for name, num_bytes in found)


def _recorded(url: str, packings: Sequence[Packing], *, remote: bool) -> int:
    if remote:
        return places.store_of(url, packings[0]).stored_bytes()
    return int(packings[0].outputs.get("num_bytes") or 0)
