"""What is asked of a suite while it runs: how its driver reads it, and what follows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from headrace.errors import RecipeError
from headrace.files.layout import RunFolder
from headrace.files.lines import whole_lines
from headrace.suites.board import Board
from headrace.suites.records import Added, Control, Entry, Heeded, Point, Trial

logger = logging.getLogger(__name__)

AddPoint = Callable[[Point], Iterable[Trial]]
"""Makes the trials of a point, with numbers after those that are there."""


class Controls:
    """Reads `controls.jsonl` of a suite from where it was read before.

    Attributes:
        is_paused: Whether no more trials begin.
        limit: Most trials at once; None: no limit.
    """

    def __init__(self, run: RunFolder, limit: int | None) -> None:
        self._path = run.controls
        self._offset = self._lines = 0
        self.is_paused = False
        self.limit = limit

    def heed(self, board: Board, add: AddPoint) -> list[Entry]:
        """Entries that follow from what was asked since the last call; sets pause and limit.

        What the board's journal says was heeded before is not done again.
        """
        trials: list[Trial] = []
        retried: set[int] = set()
        cancelled: set[int] = set()
        priorities: dict[int, float] = {}
        for line, control in self._new():
            self._set(control)
            if line <= board.heeded:
                continue
            numbers = control.numbers or tuple(board.rows)
            if control.what == "add":
                trials += _added(control, add)
            elif control.what == "retry":
                retried |= {each for each in numbers if _is_failed(board, each)}
                cancelled -= retried
            elif control.what == "cancel":
                cancelled |= {each for each in numbers if _goes_on(board, each)}
            elif control.what == "prioritize":
                priorities |= dict.fromkeys(control.numbers, control.priority or 0.0)
        if self._lines <= board.heeded:
            return []
        heeded = Heeded(
            lines=self._lines,
            retried=tuple(sorted(retried)),
            cancelled=tuple(sorted(cancelled)),
            priorities=priorities,
        )
        return [*(Added(trial=trial) for trial in trials), heeded]

    def _set(self, control: Control) -> None:
        if control.what in ("pause", "resume"):
            self.is_paused = control.what == "pause"
        elif control.what == "limit":
            self.limit = control.limit

    def _new(self) -> Iterator[tuple[int, Control]]:
        """Controls with the numbers of their lines; a line that is none is left out."""
        lines, self._offset = whole_lines(self._path, self._offset)
        for line in lines:
            self._lines += 1
            try:
                yield self._lines, Control.model_validate_json(line)
            except ValidationError as error:
                logger.warning("Line %d of %s is no control: %s", self._lines, self._path, error)


def _added(control: Control, add: AddPoint) -> Iterator[Trial]:
    told = {} if control.priority is None else {"priority": control.priority}
    for point in control.points:
        try:
            yield from [trial.model_copy(update=told) for trial in add(point)]
        except RecipeError as error:
            logger.warning("The point %s is not added: %s", point, error)


def _is_failed(board: Board, number: int) -> bool:
    row = board.rows.get(number)
    return row is not None and (row.has_failed or row.unwanted)


def _goes_on(board: Board, number: int) -> bool:
    row = board.rows.get(number)
    return row is not None and not row.state.is_final
