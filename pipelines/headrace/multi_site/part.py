"""The process of a part of a suite: `python -m headrace.multi_site.part PART_RUN_ID [--detach]`.

It copies the dataset to the site, then carries the run out: it opens, replaces and closes the
site's leases. It is independent of the suite's driver, which starts it again if it was killed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from headrace.clusters.images import pull
from headrace.clusters.local import unmarked
from headrace.errors import DataError, HeadraceError, StepError, StorageError
from headrace.execution.execute import execute, patiently
from headrace.execution.reap import end_run
from headrace.execution.ticks import Tick, tolerating_ledger_errors
from headrace.files.atomic import is_there, tolerating_storage, write_record
from headrace.files.layout import RunFolder
from headrace.files.locks import at_once, exclusive_while
from headrace.files.machine import require_room, storage_error
from headrace.files.manifest import Manifest
from headrace.ledger.ledger import open_ledger
from headrace.objects.protocol import Store
from headrace.objects.store import is_remote, open_store, read_manifest_at
from headrace.packing.target import DatasetFolder, PackTarget, packed_dataset
from headrace.processes.children import Child, start_program
from headrace.processes.identity import tell_children
from headrace.processes.working_folder import python_module
from headrace.runs.code_state import containers_of
from headrace.runs.lifecycle import owned_by
from headrace.runs.owners import owner_is_gone, process_owner
from headrace.runs.parts import part_status, suite_of_part
from headrace.runs.runs import Run, open_run, packed_by
from headrace.runs.suites import has_more_to_do
from headrace.staging.bringing import Filling, fetch_shards
from headrace.staging.gang_store import GangStore, Traffic
from headrace.states import StepState

logger = logging.getLogger(__name__)

_MODULE = "headrace.multi_site.part"
_LOCK = ".part.lock"
_LOOK_S = 5.0
_GB = 1e9


def start_part(part: Run) -> None:
    """Start the process of a part, detached from the caller; do nothing if it runs."""
    if is_served(part.folder):
        return
    command = python_module(_MODULE, part.run_id, "--detach")
    environment = unmarked(os.environ)
    child = Child(name="part", command=command, log=part.folder.log, env=environment)
    start_program(child, {}).wait()  # it has forked the process that stays


def is_served(part: RunFolder) -> bool:
    """Whether the process of a part runs, on any machine that shares the folder's locks."""
    with at_once(part.path / _LOCK) as is_free:
        return not is_free


def serve(run: Run) -> None:
    """Carry out a part to its end, and record how it ended."""
    why = ""
    try:
        _carry_out(run)
    except (HeadraceError, OSError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        named = storage_error(error, run.folder.path) or error
        why = "the suite has ended" if stopped else str(named)
        if not open_ledger().run(run.run_id).state.is_final:  # before its first step
            end_run(run, StepState.CANCELLED if stopped else StepState.FAILED, why)
    _note(run, phase="ended", why=why)


def _carry_out(run: Run) -> None:
    suite_ends = tolerating_ledger_errors(_until_suite_ends(run))

    def tick() -> None:
        suite_ends()
        if not is_there(run.folder.request):  # else leases would be opened in a new folder
            raise StorageError(f"The folder {run.folder.path} is gone")

    while True:
        owner = process_owner()
        open_ledger().reopen_run(run.run_id, owner)
        run = owned_by(run, owner)
        _prepare(run, tick)
        _note(run, phase="running")
        failed = execute(run, tick, waits_for_storage=True)
        if failed is not None or not has_more_to_do(run.folder):
            return


def _prepare(run: Run, tick: Tick) -> None:
    """Bring what the site needs; begin again if its folder was gone meanwhile."""
    while True:
        patiently(run, tick, tick)
        try:
            _note(run, phase="starting", why="")
            for container in containers_of(run.recipe, run.site):
                pull(container, run.site_folder.path)
            return bring_dataset(run, tick)
        except (OSError, StorageError):
            if is_there(run.folder.request):
                raise


def _until_suite_ends(run: Run) -> Tick:
    """Return a tick that raises `KeyboardInterrupt` when the suite of a part has ended."""
    suite_id, due_s = suite_of_part(run.run_id), 0.0
    if suite_id is None:
        raise StepError(f"Run {run.run_id} is not the part of a suite")

    def tick() -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + _LOOK_S
            if _has_ended(suite_id):
                raise KeyboardInterrupt

    return tick


def _has_ended(suite_id: str) -> bool:
    """Whether a suite has ended, or its user has left it with a second Ctrl-C."""
    ledger = open_ledger()
    record = ledger.run(suite_id)
    if record.state.is_final or not owner_is_gone(record.owner):
        return record.state.is_final
    attempts = ledger.attempts(suite_id)
    return bool(attempts) and attempts[-1].state is StepState.CANCELLED


def bring_dataset(run: Run, tick: Tick) -> None:
    """Copy the suite's packed dataset to the site of a part, unless it is there.

    Shards are verified; an interrupted copy is completed. A second caller waits for the first.

    Raises:
        DataError: The dataset is not whole, or cannot be read at the site's place.
        StorageFullError: The site's folder has no room.
    """
    place, suite_id = run.recipe.dataset_path, suite_of_part(run.run_id)
    if place is None or suite_id is None:
        return
    source = packed_by(suite_id)
    if is_remote(place) or Path(source).resolve() == Path(place).resolve():
        read_manifest_at(place, run.site.s3)
        return
    target = PackTarget(folder=DatasetFolder(Path(place)), url=None, s3=run.site.s3)
    manifest = read_manifest_at(source)
    if _has(target, manifest):
        return
    _note(run, phase="copying", done=0, total=sum(each.num_bytes for each in manifest.shards))
    target.folder.shards.mkdir(parents=True, exist_ok=True)
    with exclusive_while(target.lock_file, tick):
        if not _has(target, manifest):
            _copy(run, open_store(source), target, manifest, tick)


def _has(target: PackTarget, manifest: Manifest) -> bool:
    try:
        found = packed_dataset(target.location, target.s3)
    except DataError:
        return False
    return found.fingerprint == manifest.fingerprint


def _copy(run: Run, source: Store, target: PackTarget, manifest: Manifest, tick: Tick) -> None:
    folder, before, traffic = target.folder.path, part_status(run.folder), Traffic()
    for left in target.folder.shards.glob(".*"):  # of a copy that was killed
        left.unlink()
    there = {each.name: each.stat().st_size for each in target.folder.shards.iterdir()}
    num_bytes = sum(each.num_bytes for each in manifest.shards)
    require_room(folder, num_bytes - sum(there.values()))
    price, begun_s = run.site.prices.usd_per_fetched_gb, time.monotonic()

    def progress(done: int, total: int) -> None:
        copied = before.copied_bytes + traffic.brought.source_bytes
        _note(
            run,
            done=done,
            total=total,
            copied_bytes=copied,
            copied_s=before.copied_s + time.monotonic() - begun_s,
            usd=None if price is None else price * copied / _GB,
        )
        tick()

    store = GangStore(source, manifest.shards, None, traffic)
    filling = Filling(store=store, manifest=manifest, splits=tuple(manifest.splits))
    fetch_shards(filling, folder, manifest.shards, target.has, progress)
    target.publish(manifest)
    now = part_status(run.folder)
    usd = "" if now.usd is None else f", ${now.usd:.4g}"
    took = f"{now.copied_bytes / _GB:.4g} GB in {now.copied_s:.1f} s{usd}"
    logger.info("Copied %s to %s: %s", source.url, target.location, took)


def _note(run: Run, **changes: Any) -> None:
    """Change the status of a part."""
    if not is_there(run.folder.request):
        return  # it would be made anew, below a mount point
    with tolerating_storage("The status of the part is not written"):
        status = part_status(run.folder).model_copy(update=changes)
        write_record(run.folder.part, status)


def main(arguments: list[str]) -> None:
    """Carry out a part, unless another process does.

    With `--detach` a process does that that does not descend from the caller; this one ends then.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    run = open_run(arguments[0])
    with at_once(run.folder.path / _LOCK) as is_free:
        if not is_free:
            return
        if "--detach" in arguments:
            if os.fork() != 0:
                os._exit(0)  # the fork holds the lock
            os.setsid()
        tell_children()
        serve(run)


if __name__ == "__main__":
    main(sys.argv[1:])
