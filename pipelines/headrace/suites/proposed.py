"""Trials of points that a sampler proposes, by what earlier ones gave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean

from headrace.files.layout import RunFolder
from headrace.recipe.recipe import Recipe
from headrace.states import StepState
from headrace.steps.history import read_history
from headrace.suites.board import Board, Row
from headrace.suites.points import TrialMaker, count
from headrace.suites.records import Added, Ended, Entry, Point, Trial
from headrace.suites.search import Search


class Proposed:
    """Proposals of a search, each with all of its seeds and folds.

    The search is brought to where it was by the journal: the same calls in the same order.

    Args:
        recipe: The suite's.
        search: Its search, without proposals so far.
        run: Folder of the suite's run.
    """

    def __init__(self, recipe: Recipe, search: Search, run: RunFolder) -> None:
        self._search, self._run = search, run
        self._recipe = recipe
        self._board = Board()
        self._a_point = count(recipe) // search.spec.trials
        self._numbers: dict[int, list[int]] = {}
        self._has_pruner = search.spec.pruner != "none"

    @property
    def total(self) -> int:
        """Trials so far, and those of proposals to come."""
        left = self._search.spec.trials - self._search.num_proposed
        return len(self._board.rows) + left * self._a_point

    @property
    def is_exhausted(self) -> bool:
        """Whether all are proposed."""
        return self._search.num_proposed >= self._search.spec.trials

    def watch(self, board: Board) -> None:
        """Number trials after those on the board."""
        self._board = board

    def more(self, wanted: int) -> Sequence[Trial]:
        """Trials of one proposal, when there is room for one: the next may know more."""
        while wanted > 0 and (proposed := self._search.propose()) is not None:
            number, point = proposed
            if trials := list(self._maker.trials(point, number)):
                return trials
            self._search.tell(number, None)  # suite.skip leaves it out
        return ()

    def add(self, point: Point) -> Iterable[Trial]:
        """Trials that the sampler has not proposed, and is not told of."""
        return self._maker.trials(point)

    def take(self, entry: Entry) -> None:
        """Bring the search to where it is after an entry."""
        if isinstance(entry, Added) and entry.trial.proposal is not None:
            self._know(entry.trial, entry.trial.proposal)
        elif isinstance(entry, Ended) and entry.is_final and entry.number in self._board.rows:
            self._tell(self._board.rows[entry.number])

    def promises_little(self, row: Row) -> bool:
        """Report what it has validated since the last call; gives what the pruner thinks."""
        if not self._has_pruner or row.trial.proposal is None:
            return False
        metric = self._search.objectives[0].metric
        history = read_history(self._run.trial(row.trial.number)).metrics
        values = [each.metrics[metric] for each in history if metric in each.metrics]
        told = [
            self._search.report(row.trial.proposal, step, value)
            for step, value in enumerate(values, 1)
        ]
        return any(told)

    @cached_property
    def _maker(self) -> TrialMaker:
        return TrialMaker(self._recipe, (row.trial for row in self._board.rows.values()))

    def _know(self, trial: Trial, proposal: int) -> None:
        while self._search.num_proposed < proposal and (left_out := self._search.propose()):
            self._search.tell(left_out[0], None)
        if self._search.num_proposed == proposal:
            self._search.know(trial.values)
        self._numbers.setdefault(proposal, []).append(trial.number)

    def _tell(self, row: Row) -> None:
        """Tell the search what a point gave, when all of its trials have ended: their mean."""
        proposal = row.trial.proposal
        if proposal is None:
            return
        rows = [self._board.rows[number] for number in self._numbers[proposal]]
        if not all(each.state.is_final for each in rows):
            return
        self.promises_little(row)  # what it validated last counts for others
        gave = [each.objectives for each in rows if each.state is StepState.SUCCEEDED]
        are_whole = len(gave) == len(rows) and all(gave)
        values = [fmean(column) for column in zip(*gave, strict=True)] if are_whole else None
        self._search.tell(proposal, values, pruned=any(each.pruned for each in rows))
