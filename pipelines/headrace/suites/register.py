"""What happens to the trials of a suite, taken down at once by all who have to know."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from headrace.files.layout import RunFolder
from headrace.states import FailureClass, StepState
from headrace.suites.board import Board, Row
from headrace.suites.journal import Journal
from headrace.suites.machines import Machines
from headrace.suites.outcome import never_begun
from headrace.suites.points import Source
from headrace.suites.records import Added, Ended, Entry, Heeded
from headrace.suites.schedule import Queue


class Register:
    """Keeps journal, board, queue and source in step: the journal first.

    Attributes:
        board: How the trials stand.
        queue: Those that wait.
    """

    def __init__(
        self,
        journal: Journal,
        source: Source,
        machines: Machines,
        board: Board,
        retention: Retention,
    ) -> None:
        self._journal, self._source, self._machines = journal, source, machines
        self._retention = retention
        self.board = board
        self.queue = Queue()

    def restore(self) -> None:
        """Go on from what the journal holds."""
        self._source.watch(self.board)
        for entry in self._journal.entries():
            self._take(entry)
        self._retention.look(self.board, self.board.rows)
        self.enqueue()

    def note(self, *entries: Entry) -> None:
        """Something has happened, or is about to."""
        if not entries:
            return
        self._journal.add(*entries)
        rows: list[Row] = []
        for entry in entries:
            self._take(entry)
            rows += self._concerned(entry)
        self._enqueue(rows)
        ended = [entry.number for entry in entries if isinstance(entry, Ended)]
        self._retention.look(self.board, ended)

    def enqueue(self) -> None:
        """Have all wait in the queue, with what they take by what is known of the nodes now."""
        self._enqueue(self.board.waiting())

    def _take(self, entry: Entry) -> None:
        self.board.take(entry)
        self._source.take(entry)

    def _concerned(self, entry: Entry) -> Iterable[Row]:
        """Trials that may have to wait now, or not any more."""
        rows = self.board.rows
        if isinstance(entry, Heeded):
            concerned = (*entry.retried, *entry.priorities)
            return [rows[number] for number in concerned if number in rows]
        if isinstance(entry, Added):
            return [rows[entry.trial.number]]
        if isinstance(entry, Ended):
            if self._machines.learn(entry.usage.gpu_memory_bytes):
                return self.board.waiting()
            return [rows[entry.number]]
        return ()

    def _enqueue(self, rows: Iterable[Row]) -> None:
        never = []
        for row in rows:
            number = row.trial.number
            self.queue.drop(number)
            if row.state is not StepState.QUEUED:
                continue
            needs = self._machines.needs(row.trial.values)
            if why := self._machines.why_never(needs):
                never.append(never_begun(row, time.time(), why, FailureClass.USER_ERROR))
            else:
                self.queue.push(number, needs, avoids=row.avoids, priority=row.priority)
        self.note(*never)


class Retention:
    """Removes checkpoints of trials that have ended well; one that has failed may go on from its.

    Args:
        run: The suite's run.
        keep: As in the recipe: `all`, `best`, `none`.
    """

    def __init__(self, run: RunFolder, keep: str) -> None:
        self._run, self._keep = run, keep
        self._best: int | None = None

    def look(self, board: Board, ended: Iterable[int]) -> None:
        """Remove what is not kept, now that these trials have ended."""
        if self._keep == "all":
            return
        best = board.best.trial.number if board.best and self._keep == "best" else None
        for number in {*ended, self._best} - {best, None}:
            if number in board.rows and board.rows[number].state is StepState.SUCCEEDED:
                shutil.rmtree(self._run.trial(number).checkpoints, ignore_errors=True)
        self._best = best
