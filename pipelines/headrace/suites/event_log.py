"""Events of a suite: its journal with a single writer, and the state that follows from it.

A driver that opens the journal becomes its writer. The earlier writer, as of a lease that was
presumed lost, finds another name in the owner's file and stops.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from pydantic import JsonValue

from headrace.errors import StepCancelledError
from headrace.files.atomic import read_text, write_text
from headrace.files.layout import RunFolder
from headrace.files.sharing import private_mode
from headrace.states import FailureClass, StepState
from headrace.suites.points import PointSource
from headrace.suites.records import Ended, Entry, entries_in
from headrace.suites.schedule import Queue, Resources
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_policy import never_begun

_SYNC_EVERY_S = 1.0
_BLOCK = 2**20


class TakenOverError(StepCancelledError):
    """Another driver has become the writer of the journal."""


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
        """Return the entries, the oldest first; malformed lines are left out."""
        return entries_in(self._run.journal)

    def add(self, *entries: Entry) -> None:
        """Append in one write.

        Raises:
            TakenOverError: Another driver is the writer; nothing is appended.
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
        """Write appended entries to disk, if any are not."""
        if self._is_dirty:
            os.fsync(self._handle)
            self._is_dirty, self._synced_s = False, time.monotonic()

    def sync_now_and_then(self) -> None:
        """Call `sync` at most once per second; raise as `add` if another driver is the writer."""
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


class Needs:
    """What attempts at trials need of the places where they run; here nothing."""

    def needs(self, values: Mapping[str, JsonValue]) -> Resources:
        """Return the needs of a trial with these values."""
        del values
        return Resources()

    def why_never(self, needs: Resources) -> str:
        """Return why a trial can never start there; empty if it can."""
        del needs
        return ""

    def learn(self, gpu_bytes: int | None) -> bool:
        """Record the GPU memory that a trial used; return whether needs have changed."""
        del gpu_bytes
        return False


class EventWriter:
    """Writes events to the journal first, then applies them to state, queue and source.

    Attributes:
        suite_state: State of the trials.
        queue: Those that wait.
    """

    def __init__(
        self,
        journal: Journal,
        source: PointSource,
        needs: Needs,
        suite_state: SuiteState,
        retention: Retention,
    ) -> None:
        self._journal, self._source, self._needs = journal, source, needs
        self._retention = retention
        self.suite_state = suite_state
        self.queue = Queue()

    def restore(self) -> None:
        """Restore the state from the journal."""
        self._source.watch(self.suite_state)
        for entry in self._journal.entries():
            self._take(entry)
        self._retention.look(self.suite_state, self.suite_state.rows)
        self.enqueue()

    def note(self, *entries: Entry) -> None:
        """Write and apply events that have happened, or are about to."""
        if not entries:
            return
        self._journal.add(*entries)
        rows: list[TrialState] = []
        for entry in entries:
            rows += self._take(entry)
            if isinstance(entry, Ended) and self._needs.learn(entry.usage.gpu_memory_bytes):
                rows += self.suite_state.waiting()
        self._enqueue({row.trial.number: row for row in rows}.values())
        ended = [entry.number for entry in entries if isinstance(entry, Ended)]
        self._retention.look(self.suite_state, ended)

    def enqueue(self) -> None:
        """Queue all waiting trials again, with their needs by the nodes that are known now."""
        self._enqueue(self.suite_state.waiting())

    def _take(self, entry: Entry) -> list[TrialState]:
        rows = self.suite_state.take(entry)
        self._source.take(entry)
        return rows

    def _enqueue(self, rows: Iterable[TrialState]) -> None:
        never = []
        for row in rows:
            number = row.trial.number
            self.queue.drop(number)
            if row.state is not StepState.QUEUED:
                continue
            needs = self._needs.needs(row.trial.values)
            if why := self._needs.why_never(needs):
                never.append(never_begun(row, why, FailureClass.USER_ERROR))
            else:
                self.queue.push(number, needs, avoids=row.avoids, priority=row.priority)
        self.note(*never)


class Retention:
    """Removes checkpoints of succeeded trials; failed ones may resume from theirs.

    Args:
        keep: As in the recipe: `all`, `best`, `none`.
        remove: Removes the checkpoints of a trial, if it has any.
    """

    def __init__(self, keep: str, remove: Callable[[TrialState], None]) -> None:
        self._keep, self._remove = keep, remove
        self._best: int | None = None

    def look(self, suite_state: SuiteState, ended: Iterable[int]) -> None:
        """Remove checkpoints that are not kept, after these trials have ended."""
        if self._keep == "all":
            return
        best = suite_state.best.trial.number if suite_state.best and self._keep == "best" else None
        for number in {*ended, self._best} - {best, None}:
            if number in suite_state.rows and suite_state.rows[number].state is StepState.SUCCEEDED:
                self._remove(suite_state.rows[number])
        self._best = best


def _cut_torn(handle: int) -> None:
    """Truncate a file after its last whole line: its writer may have been killed in the next."""
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
