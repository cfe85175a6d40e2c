"""Where the trials of a suite come from, as its driver sees it; those that a recipe names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from headrace.recipe.recipe import Recipe
from headrace.suites import points
from headrace.suites.board import Board, Row
from headrace.suites.records import Entry, Point, Trial


class Source(Protocol):
    """Gives trials, and is told how they end."""

    @property
    def total(self) -> int:
        """Trials in all, as far as is known: those to come count, too."""

    @property
    def is_exhausted(self) -> bool:
        """Whether it gives no more."""

    def watch(self, board: Board) -> None:
        """Be told of the board on which its trials will stand; called once, first."""

    def more(self, wanted: int) -> Sequence[Trial]:
        """Some further trials, not more than a block; none when there are none just now.

        Args:
            wanted: Trials that could begin at once.
        """

    def add(self, point: Point) -> Iterable[Trial]:
        """The trials of a point that somebody adds.

        Raises:
            RecipeError: It cannot be used, or is there.
        """

    def take(self, entry: Entry) -> None:
        """Something has happened to a trial; told in the journal's order, after the board."""

    def promises_little(self, row: Row) -> bool:
        """Whether a running trial is to be ended, by what it has told so far."""


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
