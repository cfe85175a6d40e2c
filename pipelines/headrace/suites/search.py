"""Points that Optuna proposes: one study, in the memory of the suite's one driver.

It is rebuilt from the journal by the same calls in the same order. A sampler that headrace makes is
made anew for each proposal, with a seed of its own: what it proposes follows from the seed, the
proposals so far and what was told of them, so that a driver that was killed makes no difference.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeGuard
from zlib import crc32

from headrace.data.targets import Allowed
from headrace.errors import RecipeError
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import SearchSpec
from headrace.suites.records import Point
from headrace.suites.samplers import keeps_nothing, make_pruner, sampler_maker
from headrace.suites.space import Choice, Interval, domain_of

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution


_DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}


class Search:
    """Asks Optuna for points, and tells it what they gave; nothing is written anywhere.

    Args:
        recipe: The suite's; its seed is the sampler's.
        allowed: What a sampler or pruner of the user's may name.

    Raises:
        RecipeError: The suite has no search, or it cannot be used.
        TargetError: The site does not allow a target.
        UserCodeError: A target cannot be made.
    """

    def __init__(self, recipe: Recipe, allowed: Allowed) -> None:
        spec = recipe.suite.search if recipe.suite else None
        if spec is None:
            raise RecipeError(f"Recipe '{recipe.name}' has no suite.search", "Give it a space.")
        self.spec: SearchSpec = spec
        self.objectives = recipe.objectives
        """What is sought."""
        self._seed = recipe.seed
        self._make_sampler = sampler_maker(spec, allowed, recipe.seed, len(self.objectives))
        self._pruner = make_pruner(recipe, spec, allowed)
        self._keeps_nothing = keeps_nothing(spec)
        self._domains = {key: domain_of(key, words) for key, words in spec.space.items()}
        self._distributions = {key: _distribution(each) for key, each in self._domains.items()}
        self._trials: list[Trial] = []
        self._reported: dict[int, set[int]] = {}
        self._mended: set[int] = set()

    @cached_property
    def study(self) -> Study:
        """Optuna's study."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _quietly():
            return optuna.create_study(
                study_name="suite",
                directions=[_DIRECTIONS[objective.mode] for objective in self.objectives],
                sampler=self._make_sampler(self._own_seed()),
                pruner=self._pruner,
            )

    @property
    def num_proposed(self) -> int:
        """Proposals so far."""
        return len(self._trials)

    def propose(self) -> tuple[int, Point] | None:
        """The next proposal's number, from 0, and its point; None when all are proposed."""
        if self.num_proposed >= self.spec.trials:
            return None
        return self.num_proposed, self._ask()

    def know(self, point: Point) -> int:
        """Take a proposal of an earlier driver as the next one; gives its number."""
        number = self.num_proposed
        self.study.enqueue_trial(self._params(point))
        self._ask(is_known=True)
        return number

    def report(self, proposal: int, step: int, value: float) -> bool:
        """Tell of the first objective after a validation, the `step`-th from 1.

        Returns:
            Whether the trial is to be ended, since it promises little.
        """
        if len(self.objectives) > 1 or self.spec.pruner == "none":
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
        """Tell what a proposal gave.

        What failed at first may be told again, when it has been tried again.

        Args:
            proposal: Its number.
            values: Of each objective; None, too few, or what is no finite number: it has failed.
            pruned: Whether it was ended since it promised little.
        """
        from optuna.trial import TrialState

        numbers: list[float] = [value for value in values or () if _is_finite(value)]
        is_whole = len(numbers) == len(values or ()) == len(self.objectives)
        state = TrialState.COMPLETE if is_whole else TrialState.FAIL
        state = TrialState.PRUNED if pruned else state
        told = numbers if is_whole and not pruned else None
        trial = self._trials[proposal]
        before = self.study.get_trials(deepcopy=False)[trial.number].state
        with _quietly():
            if before is TrialState.RUNNING:
                self.study.tell(trial, told, state)
            elif before is TrialState.FAIL and is_whole and proposal not in self._mended:
                self._mended.add(proposal)
                self._add(trial, numbers)

    def _ask(self, *, is_known: bool = False) -> Point:
        with _quietly():
            self.study.sampler = self._make_sampler(self._own_seed())
            trial = self.study.ask()
            if is_known and not self._keeps_nothing:
                _ = trial.relative_params  # has it sampled: the sampler notes that
            params = {key: _suggest(trial, key, to) for key, to in self._distributions.items()}
        self._trials.append(trial)
        return self._point(params)

    def _add(self, failed: Trial, values: Sequence[float]) -> None:
        from optuna.trial import create_trial

        known = self._distributions
        self.study.add_trial(
            create_trial(params=failed.params, distributions=known, values=list(values))
        )

    def _own_seed(self) -> int:
        """The seed of the next proposal."""
        return crc32(f"{self._seed}/{self.num_proposed}".encode())

    def _params(self, point: Point) -> dict[str, Any]:
        """A point as Optuna keeps it: choices by their JSON."""
        return {
            key: json.dumps(point[key]) if isinstance(domain, Choice) else point[key]
            for key, domain in self._domains.items()
        }

    def _point(self, params: dict[str, Any]) -> Point:
        return {
            key: json.loads(params[key]) if isinstance(domain, Choice) else params[key]
            for key, domain in self._domains.items()
        }


def _distribution(domain: Interval | Choice) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(domain, Choice):
        return CategoricalDistribution([json.dumps(value) for value in domain.values])
    if domain.is_int:
        step = int(domain.step or 1)
        return IntDistribution(int(domain.low), int(domain.high), log=domain.is_log, step=step)
    return FloatDistribution(domain.low, domain.high, log=domain.is_log, step=domain.step)


def _suggest(trial: Trial, key: str, to: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(to, CategoricalDistribution):
        return trial.suggest_categorical(key, to.choices)
    if isinstance(to, IntDistribution):
        return trial.suggest_int(key, to.low, to.high, step=to.step, log=to.log)
    if isinstance(to, FloatDistribution):
        return trial.suggest_float(key, to.low, to.high, step=to.step, log=to.log)
    raise TypeError(f"unknown distribution {to}")


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep to itself that Optuna may change what it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
