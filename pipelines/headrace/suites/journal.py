"""The journal of a suite: what happened to its trials, appended by one writer at a time.

Whoever opens it is the writer from then on: an earlier one, as that of a lease that was taken for
lost, finds another name in the owner's file and stops.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator

from pydantic import ValidationError

from headrace.errors import StepCancelledError
from headrace.files.atomic import read_text, write_text
from headrace.files.layout import RunFolder
from headrace.files.sharing import open_to_read, private_mode
from headrace.suites.records import ENTRY, Entry

logger = logging.getLogger(__name__)

_SYNC_EVERY_S = 1.0
_BLOCK = 2**20


class TakenOverError(StepCancelledError):
    """Another driver writes the journal by now."""


class Journal:
    """`trials.jsonl` of a suite, open for appending; a torn last line is cut off.

    Args:
        run: Folder of the suite's run.
        owner: Who writes from now on.
    """

    def __init__(self, run: RunFolder, owner: str) -> None:
        self._run, self._owner = run, owner
        write_text(run.journal_owner, owner)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(run.journal, flags, private_mode(run.path))
        self._synced_s = time.monotonic()
        self._is_dirty = False
        _cut_torn(self._handle)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.sync()
        os.close(self._handle)

    def entries(self) -> Iterator[Entry]:
        """What is there, the oldest first; a line that is damaged is left out."""
        with open_to_read(self._run.journal) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield ENTRY.validate_json(line)
                except ValidationError:
                    logger.warning("Line %d of %s is damaged", number, self._run.journal)

    def add(self, *entries: Entry) -> None:
        """Append in one write.

        Raises:
            TakenOverError: Another driver writes by now; nothing is appended.
            OSError: The disk is full; nothing is appended.
        """
        if not entries:
            return
        self._check_owner()
        lines = b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries)
        size = os.fstat(self._handle).st_size
        try:
            self._write(lines)
        except OSError:
            os.ftruncate(self._handle, size)
            raise
        self._is_dirty = True

    def sync(self) -> None:
        """Have what was appended outlive the machine, unless that is so."""
        if self._is_dirty:
            os.fsync(self._handle)
            self._is_dirty, self._synced_s = False, time.monotonic()

    def sync_now_and_then(self) -> None:
        """`sync`, once a second at most; raises as `add` when another driver writes by now."""
        self._check_owner()
        if time.monotonic() - self._synced_s >= _SYNC_EVERY_S:
            self.sync()

    def _write(self, lines: bytes) -> None:
        if os.write(self._handle, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._run.journal))

    def _check_owner(self) -> None:
        owner = read_text(self._run.journal_owner)
        if owner != self._owner:
            raise TakenOverError(f"{owner} has taken this suite over")


def _cut_torn(handle: int) -> None:
    """Shorten a file to its last whole line: its writer was killed in the one after."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        start = max(end - _BLOCK, 0)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(handle, end)
