"""Copies of a run's checkpoints in `trainer.checkpoint_target`, made during training.

A copy of checkpoint NAME consists of its files and of `NAME.json` with their checksums, which is
written before the files, and again after all of them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from headrace.checkpoints import files as checkpoints
from headrace.errors import DataError, HeadraceError, StoreMissingError
from headrace.files.checksums import file_xxh3_128
from headrace.objects.protocol import Store, checked_path
from headrace.objects.store import below, open_store
from headrace.record import Record
from headrace.steps.context import StepContext

logger = logging.getLogger(__name__)

_ENTRY = re.compile(r"((?:step|best|kept)-\d{9,}\.ckpt|final\.ckpt|best\.json)\.json")
_LOOK_EVERY_S = 2.0
_REST_S = 60.0
"""Pause after a copy that failed."""


class Copied(Record):
    """Description of a copy."""

    files: dict[str, str]
    """XXH3 by path below the folder of checkpoints, 128 bits, hexadecimal."""
    is_whole: bool
    """Whether all files are there."""


class CheckpointCopies:
    """Copies a run's checkpoints to `trainer.checkpoint_target` while its context is open.

    On entry it restores checkpoints that were lost here. On exit it gives up a copy in progress.
    Failures are events of the step; they do not end training.
    """

    def __init__(self, context: StepContext) -> None:
        target = context.recipe.trainer.checkpoint_target
        place = None if target is None else below(target, context.spec.run_id)
        self._store = None if place is None else open_store(place, context.site.s3)
        self._folder, self._event = context.run_folder.checkpoints, context.event
        self._pool = ThreadPoolExecutor(1, "copies")
        self._copying: Future[dict[str, int]] | None = None
        self._copied: dict[str, int] = {}
        self._next_look_s = 0.0
        self._is_over = False
        self.problem = ""
        """Why the last copy failed; empty if it did not."""

    def __enter__(self) -> CheckpointCopies:
        if self._store is not None:
            there = self._names(self._store)  # raises at once if the server refuses access
            if checkpoints.newest_whole(self._folder) is None:
                self._bring(self._store, there)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._pool.shutdown()

    def look(self) -> None:
        """Start to copy new checkpoints, unless a copy is in progress; call it often."""
        is_copying = self._copying is not None and not self._copying.done()
        if self._store is None or is_copying or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + _LOOK_EVERY_S
        self._settle()
        there = self._there()
        if there and there != self._copied:  # what was lost here stays there
            self._copying = self._pool.submit(self._copy, self._store, there)

    def finish(self) -> None:
        """Copy what is left, and wait for it."""
        self._settle()
        self._next_look_s = 0.0
        self.look()
        self._settle()

    def _settle(self) -> None:
        """Wait for the copy, and tell why it failed."""
        copying, self._copying = self._copying, None
        if copying is None or self._store is None:
            return
        try:
            self._copied = copying.result()
            self.problem = ""
        except (HeadraceError, OSError) as error:
            self.problem = f"checkpoints are not copied to {self._store.url}: {error}"
            logger.warning("%s", self.problem)
            self._event("checkpoint_not_copied", target=self._store.url, why=str(error))
            self._next_look_s = time.monotonic() + _REST_S

    def _there(self) -> dict[str, int]:
        """What lies here by name, with the time of its last change."""
        times = {}
        for path in (*self._folder.glob("*.ckpt"), self._folder / checkpoints.BEST):
            with suppress(FileNotFoundError):
                times[path.name] = path.stat().st_mtime_ns
        return times

    def _copy(self, store: Store, there: dict[str, int]) -> dict[str, int]:
        for name in sorted(there, key=lambda name: there[name], reverse=True):
            with suppress(FileNotFoundError):  # it has become too old meanwhile
                self._send(store, name)
        for name in self._names(store):
            if name not in there:
                files = _about(store, name).files
                store.delete(f"{name}.json")
                for path in files:
                    store.delete(path)
        return there

    def _send(self, store: Store, name: str) -> None:
        copied = Copied(files=self._checksums(name), is_whole=True)
        if _about(store, name) == copied:
            return
        begun = copied.model_copy(update={"is_whole": False})
        store.write(f"{name}.json", begun.model_dump_json().encode())
        for path in copied.files:
            store.upload(self._folder / path, path, self._tick)
        store.write(f"{name}.json", copied.model_dump_json().encode())

    def _checksums(self, name: str) -> dict[str, str]:
        path = self._folder / name
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        names = (file.relative_to(self._folder).as_posix() for file in files)
        return {name: file_xxh3_128(self._folder / name, self._tick) for name in names}

    def _tick(self, _: int) -> None:
        if self._is_over:
            raise InterruptedError("the step is over")

    def _names(self, store: Store) -> list[str]:
        found = (_ENTRY.fullmatch(file.path) for file in store.list_files())
        return [match[1] for match in found if match is not None]

    def _bring(self, store: Store, names: Iterable[str]) -> None:
        """Take the newest whole checkpoint, the best one, and those that evaluation names."""
        whole = {name: about for name in names if (about := _about(store, name)).is_whole}
        steps = {name: checkpoints.step_of(Path(name)) or 0 for name in whole}
        newest = sorted((name for name in steps if steps[name]), key=steps.__getitem__)[::-1]
        others = (name for name in whole if name not in newest and name != checkpoints.FINAL)
        for name in others if newest else ():
            self._fetch(store, name, whole[name])
        for name in newest:
            if self._fetch(store, name, whole[name]):
                self._event("brought_checkpoint", checkpoint=name, source=store.url)
                return

    def _fetch(self, store: Store, name: str, about: Copied) -> bool:
        """Restore a checkpoint under its name; return whether its copy was undamaged."""
        prepared = self._folder / f".{name}.copy.partial"
        checkpoints.remove(prepared)
        try:
            _download(store, name, about, prepared)
        except (DataError, ValueError) as error:
            checkpoints.remove(prepared)
            self._event("damaged_checkpoint", checkpoint=f"{store.url}/{name}", why=str(error))
            return False
        checkpoints.publish(prepared, self._folder / name)
        return True


def _about(store: Store, name: str) -> Copied:
    """What is known of a copy; of none that it is not whole."""
    try:
        return Copied.model_validate_json(store.read(f"{name}.json"))
    except (StoreMissingError, ValueError):
        return Copied(files={}, is_whole=False)


def _download(store: Store, name: str, about: Copied, prepared: Path) -> None:
    for path, checksum in about.files.items():
        target = prepared / PurePosixPath(checked_path(store.url, path)).relative_to(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if store.download(path, target) != checksum:
            raise DataError(f"checksum of {path} is wrong")
