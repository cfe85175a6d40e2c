"""Which trials' checkpoints stay, by `suite.keep_checkpoints`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from headrace.files.layout import RunFolder
from headrace.states import StepState
from headrace.suites.board import Board


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
