"""A run as one archive that another home opens: a plain tar, checksums of its files at the end."""

from __future__ import annotations

import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headrace.errors import DataError, LedgerError, UserError
from headrace.execution.reap import enter_lease
from headrace.files.atomic import fsync, publish_folder, replacing, write_record
from headrace.files.checksums import file_xxh3_128
from headrace.files.damage import SEAL, seal, sealed_damage
from headrace.files.layout import SiteFolder
from headrace.files.machine import require_room
from headrace.files.private import make_private
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.record import Record
from headrace.runs.lifecycle import recorded
from headrace.runs.names import there
from headrace.runs.on_disk import note_sizes
from headrace.runs.origin import origin
from headrace.runs.parts import part_records
from headrace.runs.runs import outputs_of, run_of_folder, run_of_record
from headrace.states import StepState

_PACKAGE, _LEFT_OUT = "package.json", ("tls", "services.json", "scheduler.json", "heartbeat")
_NAMES = re.compile(rf"(runs|leases|datasets)(/[^/.][^/]*){{2,}}|{_PACKAGE}|{SEAL}")
"""Files of a package; hidden ones and `..` do not match."""


class Package(Record):
    """What the receiver needs to know of a run besides its files."""

    run_id: str
    state: StepState
    finished_at: float
    folders: dict[str, str]
    """Folders of the run's machine, with their places in the archive."""


def write_package(record: RunRecord, file: Path, *, with_data: bool) -> None:
    """Write the archive of a run that has ended, without keys, links and hidden files.

    Raises:
        UserError: The run has not ended, or its dataset is in no folder.
    """
    run_id, run = record.run_id, run_of_record(record)
    dataset = origin(run_id).dataset
    if record.finished_at is None:
        raise UserError(f"Run {run_id} has not ended", f"Wait, or: headrace cancel {run_id}")
    tops = {f"runs/{run_id}": run.folder.path}
    tops |= {f"leases/{x.lease_id}": Path(x.folder) for x in open_ledger().leases(run_id=run_id)}
    folders = {str(run.site_folder.path): "", run.site.folder: ""}
    for part in part_records(run_id):  # links of trials lead there
        folders[part.folder] = f"runs/{run_id}"
    links = (each for each in run.folder.trials.glob("*") if each.is_symlink())
    tops |= {f"runs/{run_id}/trials/{each.name}": each.resolve() for each in links}
    if with_data:
        data = Path(dataset).expanduser()
        if not dataset or not data.is_dir():
            what = f"The dataset of run {run_id} is in no folder of here: '{dataset}'"
            raise UserError(what, "Leave --with-data out.")
        is_packed_here = data.parent == run.site_folder.datasets  # its name has its fingerprint
        folders[dataset] = f"datasets/{data.name if is_packed_here else run_id}"
        tops[folders[dataset]] = data
    found = {name: path for top in tops.items() for name, path in _files(*top)}
    ended = {"state": record.state, "finished_at": record.finished_at}
    with tempfile.TemporaryDirectory() as folder, replacing(file) as target:
        found[_PACKAGE] = Path(folder, _PACKAGE)
        write_record(found[_PACKAGE], Package(run_id=run_id, folders=folders, **ended))
        seal(Path(folder), {name: file_xxh3_128(path) for name, path in found.items()})
        found[SEAL] = Path(folder, SEAL)
        with tarfile.open(fileobj=target, mode="w|", dereference=True) as archive:
            for name, path in found.items():
                archive.add(path, name, recursive=False)


def open_package(file: Path, site: SiteFolder) -> str:
    """Enter a package's run in a site's folder and in the ledger; return its id.

    A second call changes nothing.

    Raises:
        DataError: The package is damaged; nothing of it is left.
        UnknownNameError: The run was here and was removed, which an adoption does not undo.
    """
    make_private(site.path)
    require_room(site.path, file.stat().st_size)
    with tempfile.TemporaryDirectory(dir=site.path, prefix=".package-") as folder:
        prepared = Path(folder)
        try:
            _extract(file, prepared)
            package = Package.model_validate_json((prepared / _PACKAGE).read_bytes())
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise DataError(f"{file} is damaged, or no package of a run: {error}") from error
        _move(prepared, package, site)
        names = [each.relative_to(prepared) for each in sorted(prepared.glob("[dlr]*/*"))]
        for name in names:  # the run is the last one
            (site.path / name).parent.mkdir(exist_ok=True)
            if publish_folder(prepared / name, site.path / name):
                make_private(site.path / name)
    run = run_of_folder(package.run_id, site.run(package.run_id))
    row = recorded(run, run.folder.recipe.stat().st_mtime)
    with suppress(LedgerError):  # it has the run
        # a run of here may have the key that this one has there
        open_ledger().add_run(replace(row, key=f"package:{run.run_id}"))
    for name in names:
        if name.parts[0] == site.leases.name:
            enter_lease(site.lease(name.name))
    ended_at, outputs = package.finished_at, outputs_of(run.run_id)
    open_ledger().finish_run(run.run_id, package.state, ended_at, outputs)
    note_sizes(run.run_id)
    return there(run.run_id).name


def _files(name: str, top: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder with their names in the archive."""
    for at, folders, files in os.walk(top):
        folders[:] = sorted(x for x in folders if x[0] != "." and x not in _LEFT_OUT)
        for path in (Path(at, x) for x in files if x[0] != "." and x not in _LEFT_OUT):
            if path.is_file() and not path.is_symlink():
                yield f"{name}/{path.relative_to(top)}", path


def _extract(file: Path, folder: Path) -> None:
    """Write the files of an archive, and compare them with their checksums."""
    with tarfile.open(file, "r:") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        for member in archive:
            is_plain = member.isreg() and not member.issparse()
            if not is_plain or not _NAMES.fullmatch(member.name):
                raise ValueError(f"it has {member.name!r}")
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            member.mode = 0o600 | member.mode & 0o100
            archive.extract(member, folder)
            fsync(folder / member.name)
    if damage := sealed_damage(folder):
        raise ValueError(damage)


def _move(prepared: Path, package: Package, site: SiteFolder) -> None:
    """Replace the folders of the run's machine in the records of the run and its leases."""
    places = package.folders | {json.dumps(x)[1:-1]: y for x, y in package.folders.items()}
    found = "|".join(re.escape(each) for each in sorted(places, key=len, reverse=True))
    code = SiteFolder(prepared).run(package.run_id).code
    for path in (*prepared.glob("runs/**/*.json*"), *prepared.glob("leases/**/*.json*")):
        if code not in path.parents:
            time, text = path.stat().st_mtime, path.read_text()
            path.write_text(
                re.sub(f'({found})(?=[/"])', lambda x: str(site.path / places[x[1]]), text)
            )
            os.utime(path, (time, time))
