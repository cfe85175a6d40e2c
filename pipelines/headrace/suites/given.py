"""Trials that a recipe names one by one, by their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from headrace.recipe.recipe import Recipe
from headrace.suites import points
from headrace.suites.board import Board, Row
from headrace.suites.records import Entry, Point, Trial

_BLOCK = 1000


class Given:
    """The trials that a recipe names: all of them are there from the start."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._trials: Iterator[Trial] = points.expand(recipe)
        self._board = Board()
        self._maker: points.TrialMaker | None = None
        self.is_exhausted = False
        self._count = points.count(recipe)

    @property
    def total(self) -> int:
        """Trials in all."""
        return max(self._count, len(self._board.rows))

    def watch(self, board: Board) -> None:
        """Trials that it has are left out."""
        self._board = board

    def more(self, wanted: int) -> Sequence[Trial]:
        """The next block."""
        del wanted
        left = (trial for trial in self._trials if trial.number not in self._board.rows)
        block = list(islice(left, _BLOCK))
        self.is_exhausted = not block
        return block

    def add(self, point: Point) -> Iterable[Trial]:
        """Trials after all others."""
        if self._maker is None:
            self._maker = points.TrialMaker(
                self._recipe, (row.trial for row in self._board.rows.values())
            )
        return self._maker.trials(point)

    def take(self, entry: Entry) -> None:
        """Nothing follows from it."""

    def promises_little(self, row: Row) -> bool:
        """None is ended."""
        del row
        return False
