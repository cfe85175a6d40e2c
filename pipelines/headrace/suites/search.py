"""Points that Optuna proposes: one study, in the memory of the suite's driver.

It is rebuilt from the suite's event log by the same calls in the same order. Headrace makes a new
sampler with a seed of its own for each proposal. So a proposal depends only on the seed and on
earlier proposals and results, and a killed driver makes no difference.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeGuard
from zlib import crc32

from headrace.data.instantiate import Allowed
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import SearchSpec
from headrace.states import StepState
from headrace.steps.history import HistoryRow, read_history
from headrace.suites.points import PointSource
from headrace.suites.records import Added, Ended, Entry, Point, Trial
from headrace.suites.samplers import OF_PAST_TRIALS, make_pruner, sampler_maker
from headrace.suites.suite_state import TrialState
from headrace.suites.values import domain_of

if TYPE_CHECKING:
    import optuna

_DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}


class Search(PointSource):
    """Points that a sampler proposes, each with all of its seeds and folds.

    It is restored from the journal by the same calls in the same order, and ignores trials that
    users add.

    Args:
        recipe: The suite's; its seed is the sampler's.
        spec: Its `suite.search`.
        allowed: What a sampler or pruner of the user's may name.
        run: Folder of the suite's run.

    Raises:
        RecipeError: The search cannot be used.
        TargetError: The site does not allow a target.
        UserCodeError: A target cannot be made.
    """

    def __init__(self, recipe: Recipe, spec: SearchSpec, allowed: Allowed, run: RunFolder) -> None:
        super().__init__(recipe)
        self._spec, self._run = spec, run
        self._objectives, self._seed = recipe.objectives, recipe.seed
        self._make_sampler = sampler_maker(spec, allowed, recipe.seed, len(self._objectives))
        self._pruner = make_pruner(recipe, spec, allowed)
        self._is_pruning = spec.pruner != "none" and len(self._objectives) == 1
        self._space = {key: domain_of(key, words) for key, words in spec.space.items()}
        self._trials: list[optuna.Trial] = []
        self._reported: dict[int, set[int]] = {}
        self._mended: set[int] = set()
        self._numbers: dict[int, list[int]] = {}
        """Numbers of the trials of each proposal."""

    @property
    def total(self) -> int:
        """Trials so far, and those of proposals to come."""
        trials_each = self._count // self._spec.trials
        return len(self._suite_state.rows) + trials_each * (self._spec.trials - self.num_proposed)

    @property
    def is_exhausted(self) -> bool:
        """Whether all are proposed."""
        return self.num_proposed >= self._spec.trials

    def more(self, wanted: int) -> Sequence[Trial]:
        """Return the trials of one proposal if there is room: the next may use its result."""
        while wanted > 0 and (proposed := self.propose()) is not None:
            number, point = proposed
            if trials := list(self._maker.trials(point, number)):
                return trials
            self.tell(number, None)  # suite.skip leaves it out
        return ()

    def take(self, entry: Entry) -> None:
        """Update the search by an entry."""
        if isinstance(entry, Added) and entry.trial.proposal is not None:
            self._restore(entry.trial, entry.trial.proposal)
        elif isinstance(entry, Ended) and entry.is_final and entry.number in self._suite_state.rows:
            self._report_end(self._suite_state.rows[entry.number])

    def should_prune(self, row: TrialState) -> bool:
        """Report new validations of a trial; return whether the pruner would end it."""
        if not self._is_pruning or row.trial.proposal is None:
            return False
        metric = self._objectives[0].metric
        rows = self._validations(self._run.trial(row.trial.number))
        values = [each.metrics[metric] for each in rows if metric in each.metrics]
        answers = [
            self.report(row.trial.proposal, step, value) for step, value in enumerate(values, 1)
        ]
        return any(answers)

    def _validations(self, trial: RunFolder) -> Sequence[HistoryRow]:
        """Return the validations of a trial; none if its folder, maybe at another site, hangs."""
        folder = trial.path.readlink() if trial.path.is_symlink() else trial.path
        part = f"histories in {folder.parent}"
        history = inform(self._run, part, partial(read_history, trial))
        return () if history is None else history.metrics

    @cached_property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _quietly():
            return optuna.create_study(
                study_name="suite",
                directions=[_DIRECTIONS[objective.mode] for objective in self._objectives],
                sampler=self._make_sampler(self._own_seed()),
                pruner=self._pruner,
            )

    @property
    def num_proposed(self) -> int:
        """Proposals so far."""
        return len(self._trials)

    def propose(self) -> tuple[int, Point] | None:
        """Return the next proposal's number, from 0, and its point; None if all are proposed."""
        if self.is_exhausted:
            return None
        return self.num_proposed, self._ask()

    def know(self, point: Point) -> int:
        """Take a proposal of an earlier driver as the next one; return its number."""
        number = self.num_proposed
        kept = {  # choices as Optuna keeps them, by their JSON
            key: json.dumps(point[key]) if self._is_choice(key) else point[key]
            for key in self._space
        }
        self.study.enqueue_trial(kept)
        self._ask(is_known=True)
        return number

    def report(self, proposal: int, step: int, value: float) -> bool:
        """Report the first objective after a validation, the `step`-th from 1.

        Returns:
            Whether the trial is to be ended early.
        """
        if not self._is_pruning:
            return False
        reported = self._reported.setdefault(proposal, set())
        if step in reported:  # it went on from a checkpoint
            return False
        reported.add(step)
        trial = self._trials[proposal]
        with _quietly():
            trial.report(value, step)
            return bool(trial.should_prune())

    def tell(self, proposal: int, values: Sequence[object] | None, *, pruned: bool = False) -> None:
        """Report the result of a proposal.

        A failed proposal may be reported again after a retry.

        Args:
            proposal: Its number.
            values: Value of each objective; None, too few or not finite numbers: it failed.
            pruned: Whether it was pruned.
        """
        from optuna.trial import TrialState, create_trial

        numbers: list[float] = [value for value in values or () if _is_finite(value)]
        is_whole = len(numbers) == len(values or ()) == len(self._objectives)
        state = TrialState.COMPLETE if is_whole else TrialState.FAIL
        state = TrialState.PRUNED if pruned else state
        result = numbers if is_whole and not pruned else None
        trial = self._trials[proposal]
        before = self.study.get_trials(deepcopy=False)[trial.number].state
        with _quietly():
            if before is TrialState.RUNNING:
                self.study.tell(trial, result, state)
            elif before is TrialState.FAIL and is_whole and proposal not in self._mended:
                self._mended.add(proposal)
                params, space = trial.params, self._space
                mended = create_trial(params=params, distributions=space, values=numbers)
                self.study.add_trial(mended)

    def _ask(self, *, is_known: bool = False) -> Point:
        with _quietly():
            self.study.sampler = self._make_sampler(self._own_seed())
            trial = self.study.ask()
            if is_known and self._spec.sampler not in OF_PAST_TRIALS:
                _ = trial.relative_params  # the sampler notes it, by trials without this one
            for key, domain in self._space.items():
                trial._suggest(key, domain)  # noqa: SLF001  as `ask` does for distributions
        self._trials.append(trial)
        params = trial.params
        return {
            key: json.loads(params[key]) if self._is_choice(key) else params[key]
            for key in self._space
        }

    def _own_seed(self) -> int:
        """Return the seed of the next proposal."""
        return crc32(f"{self._seed}/{self.num_proposed}".encode())

    def _is_choice(self, key: str) -> bool:
        from optuna.distributions import CategoricalDistribution

        return isinstance(self._space[key], CategoricalDistribution)

    def _restore(self, trial: Trial, proposal: int) -> None:
        while self.num_proposed < proposal and (left_out := self.propose()):
            self.tell(left_out[0], None)
        if self.num_proposed == proposal:
            self.know(trial.values)
        self._numbers.setdefault(proposal, []).append(trial.number)

    def _report_end(self, row: TrialState) -> None:
        """Report the mean of a point, if all of its trials have ended."""
        proposal = row.trial.proposal
        if proposal is None:
            return
        rows = [self._suite_state.rows[number] for number in self._numbers[proposal]]
        if not all(each.state.is_final for each in rows):
            return
        self.should_prune(row)  # reports its last validations, which count for others
        gave = [each.objectives for each in rows if each.state is StepState.SUCCEEDED]
        are_whole = len(gave) == len(rows) and all(gave)
        values = [fmean(column) for column in zip(*gave, strict=True)] if are_whole else None
        self.tell(proposal, values, pruned=any(each.pruned for each in rows))


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@contextmanager
def _quietly() -> Iterator[None]:
    """Ignore Optuna's warnings that it may change what it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
