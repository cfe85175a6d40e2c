"""Where the trials of a suite come from, as its driver sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

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
