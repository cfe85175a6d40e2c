"""The trials of a suite: count, numbers, names, checks, additions.

The points are the product of grid, zip, and points with file, the last one fastest; each point is
repeated with every seed, and with every fold.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from headrace.errors import RecipeError, nearest
from headrace.recipe.base import to_json
from headrace.recipe.fence import check_places, placed
from headrace.recipe.fit import check_role, check_training
from headrace.recipe.load import recipe_from
from headrace.recipe.overrides import read_override
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.suite import MAX_TRIALS, SuiteSpec
from headrace.recipe.targets import check_targets
from headrace.suites.axes import (
    Axis,
    Condition,
    axes_of,
    check_keys,
    joined,
    read_points,
    repeats_of,
    samples,
    space_axes,
    suite_of,
    texts,
)
from headrace.suites.names import by_template, by_values, constant_keys, written
from headrace.suites.records import Entry, Point, Trial
from headrace.suites.samplers import check_sampler
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.values import parse, too_many

_BLOCK = 1000
_IDLE_S = 120.0
"""Time after which a part of a suite without trials ends, and its lease with it."""


def trial_recipe(source: Mapping[str, Any], values: Point) -> Recipe:
    """Return the recipe of a trial: interpolations follow its values.

    Args:
        source: Result of `headrace.recipe.load.source_of` for the suite's recipe.
        values: Values of the trial by key.

    Raises:
        RecipeError: A key is malformed, or a value does not fit or is an interpolation.
    """
    for key, value in values.items():
        if "${" in str(value):
            raise RecipeError(
                f"'{key}' of a trial is {value!r}, an interpolation",
                "Values of trials are plain; an interpolation in the recipe follows them.",
            )
    shown = ", ".join(f"{key}={value}" for key, value in values.items())
    return recipe_from(
        source, values, f"{source['name']} with {shown}" if shown else source["name"]
    )


def count(recipe: Recipe) -> int:
    """Return the number of trials without building them; with a sampler, of its proposals.

    Raises:
        RecipeError: It is 0 or above `MAX_TRIALS`.
    """
    suite = suite_of(recipe)
    repeats = math.prod(len(axis) for axis in repeats_of(recipe))
    points = (
        suite.search.trials if suite.search else math.prod(len(each) for each in axes_of(suite))
    )
    if points * repeats > MAX_TRIALS:
        raise too_many(points * repeats)
    if suite.skip and not suite.search:
        return sum(1 for _ in expand(recipe))
    return points * repeats


def expand(recipe: Recipe) -> Iterator[Trial]:
    """Yield the trials in order, from number 1; none with a sampler.

    Raises:
        RecipeError: As for `count`; a condition or the template of names cannot be used, or gives
            one name to two trials.
    """
    suite = suite_of(recipe)
    if suite.search:
        return
    axes = axes_of(suite)
    total = math.prod(len(axis) for axis in (*axes, *repeats_of(recipe)))
    if total > MAX_TRIALS:
        raise too_many(total)
    maker = TrialMaker(recipe)
    for parts in itertools.product(*axes):
        yield from maker.trials(joined(parts))
    if maker.number == 1:
        raise RecipeError(
            f"suite.skip leaves out all {total} trials", "Change the conditions: one must not hold."
        )


class TrialMaker:
    """Makes the trials of points that are added one by one or proposed by Optuna.

    Args:
        recipe: The suite's.
        known: Existing trials: new trials have higher numbers and other names.
    """

    def __init__(self, recipe: Recipe, known: Iterable[Trial] = ()) -> None:
        self._suite = suite_of(recipe)
        self._repeats = repeats_of(recipe)
        self._conditions = [Condition(text) for text in self._suite.skip]
        urgency = self._suite.priority
        self._urgency = Condition(urgency, "suite.priority") if urgency else None
        self._base = recipe.model_dump(mode="json", by_alias=True, exclude={"suite"})
        self._left_out = constant_keys([*axes_of(self._suite), *self._repeats])
        self._names: dict[str, int] = {}
        self._points: dict[str, int] = {}
        self.number = 1
        """Number of the next trial."""
        for trial in known:
            self._note(trial)

    def trials(self, point: Point, proposal: int | None = None) -> Iterator[Trial]:
        """Yield a trial of the point for each seed and fold that no condition leaves out.

        A point with its own seed or fold is not repeated with others.

        Raises:
            RecipeError: As for `expand`.
        """
        group = self.number
        repeats = [axis for axis in self._repeats if not axis[0].keys() & point.keys()]
        for parts in itertools.product(*repeats):
            values = joined(({**point}, *parts))
            if self.is_left_out(values):
                continue
            trial = Trial(
                number=self.number,
                name=self._name(values, group, proposal),
                values=values,
                group=group,
                proposal=proposal,
                priority=self.priority_of(values),
            )
            self._note(trial)
            yield trial

    def _note(self, trial: Trial) -> None:
        self._names[trial.name] = trial.number
        self._points[written(trial.values)] = trial.number
        self.number = max(self.number, trial.number + 1)

    def is_left_out(self, values: Point) -> bool:
        """Whether a condition of `suite.skip` holds for a trial.

        Raises:
            RecipeError: A condition cannot be evaluated.
        """
        value_of = self._lookup(values)
        return any(condition.holds(value_of) for condition in self._conditions)

    def priority_of(self, values: Point) -> float:
        """What `suite.priority` says of a trial; raises as `is_left_out`."""
        return self._urgency.number(self._lookup(values)) if self._urgency else 0.0

    def _name(self, values: Point, group: int, proposal: int | None) -> str:
        template = self._suite.trial_name
        known = {"number": self.number, "group": group, "proposal": proposal}
        if template:
            name = by_template(template, self._lookup(values, known))
        else:
            name = by_values(values, self._left_out)
        same = self._points.get(written(values))
        if proposal is None and same is not None:
            raise RecipeError(
                f"Trials {same} and {self.number} are the same: {name or values}",
                "Leave one out; suite.seeds repeats a point with other seeds.",
            )
        if template and name in self._names and proposal is None:
            raise RecipeError(
                f"suite.trial_name gives the name '{name}' to the trials {self._names[name]} and "
                f"{self.number}",
                "Add a key that differs between them, or their number: {number}.",
            )
        is_free = name and name not in self._names
        return name if is_free else f"{name or 'trial'}-{self.number}"

    def _lookup(self, values: Point, known: Mapping[str, Any] | None = None) -> Callable[..., Any]:
        def value_of(key: str) -> Any:
            for where in (values, known or {}):
                if key in where:
                    return where[key]
            return _value_at(self._base, key, [*values, *(known or {})])

        return value_of


def checked(recipe: Recipe, source: Mapping[str, Any], site: Site) -> Recipe:
    """Return the recipe of a suite that can be run, checked before anything runs.

    Every value of each key is checked once, not every combination; of very many values some, but
    all paths. See also `with_paths`.

    Args:
        recipe: The suite's recipe.
        source: As for `trial_recipe`.
        site: Where it runs.

    Raises:
        UserError: A trial cannot be run.
    """
    check_places(recipe, site)
    check_targets(recipe, site)
    suite = with_paths(suite_of(recipe))
    recipe = recipe.model_copy(update={"suite": suite})
    axes = [*axes_of(suite), *space_axes(suite), *repeats_of(recipe)]
    check_keys(axes)
    count(recipe)
    if suite.search:
        check_sampler(suite.search, len(recipe.objectives))
    for _ in expand(recipe):
        pass  # names and conditions
    check_trials(source, axes, site, TrialMaker(recipe))
    check_role(recipe, site)
    return recipe


def check_trials(
    source: Mapping[str, Any], axes: Sequence[Axis], site: Site, maker: TrialMaker
) -> None:
    """Refuse values that trials cannot have; as for `checked`."""
    for values in samples(axes):
        if not maker.is_left_out(values):
            maker.priority_of(values)
            check_training(trial_recipe(source, values), site)
    for values in texts(axes):
        check_places(trial_recipe(source, values), site)


def with_paths(suite: SuiteSpec) -> SuiteSpec:
    """Return the suite with the rows of its file as points, and absolute paths of files here.

    Nodes may lack the file, and trials start in other folders.
    """
    update: dict[str, object] = {
        name: {
            key: tuple(placed(key, each) for each in values)
            for key, values in getattr(suite, name).items()
        }
        for name in ("grid", "zip")
    }
    listed = (*suite.points, *(read_points(suite.file) if suite.file else ()))
    update["points"] = tuple(
        {key: placed(key, each) for key, each in point.items()} for point in listed
    )
    return suite.model_copy(update={**update, "file": None})


def added_points(
    recipe: Recipe,
    source: Mapping[str, Any],
    site: Site,
    known: Iterable[Trial],
    words: Sequence[str],
) -> tuple[tuple[Point, ...], int]:
    """Points of words such as `model.lr=0.1,0.2` and `seed=3`: every combination.

    Args:
        recipe: The suite's.
        source: The same before interpolation.
        site: Where it runs.
        known: Trials that it has.
        words: What is different from its recipe.

    Returns:
        The points, and the number of their trials: each has all seeds and folds of the suite, if it
        names none itself.

    Raises:
        UserError: A word or a value cannot be used, names no values but an interval, or the suite
            has the trial already.
    """
    axes = _axes(words)
    points = tuple(joined(parts) for parts in itertools.product(*axes))
    trial_recipe(source, points[0])
    maker = TrialMaker(recipe, known)
    check_trials(source, axes, site, maker)
    num_trials = sum(1 for point in points for _ in maker.trials(point))
    if not num_trials:
        raise RecipeError("suite.skip leaves out all of them", "Name other values.")
    return points, num_trials


def _axes(words: Sequence[str]) -> list[Axis]:
    plain, update = parse(words)
    if "search" in update:
        raise RecipeError(
            "An interval is not a value", "Name the values to add, as in model.lr=0.01,0.02."
        )
    changes = [read_override(word) for word in plain]
    for change in changes:
        if change.sign:
            raise RecipeError(
                f"'{change.sign}{change.key}' is not a value of a trial",
                f"Write {change.key}=VALUE.",
            )
    axes: list[Axis] = [[{change.key: to_json(change.value)}] for change in changes]
    seeds = update.pop("seeds", [])
    axes += axes_of(SuiteSpec.model_validate(update))
    axes += [[{"seed": seed} for seed in seeds]] if isinstance(seeds, list) and seeds else []
    check_keys(axes)
    return axes


class PointSource:
    """Where the trials of a suite come from, as its driver sees it; here those that a recipe names.

    Args:
        recipe: The suite's.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._suite_state = SuiteState()
        self._count = count(recipe)
        self._left: Iterator[Trial] | None = expand(recipe)

    @cached_property
    def _maker(self) -> TrialMaker:
        return TrialMaker(self._recipe, (row.trial for row in self._suite_state.rows.values()))

    @property
    def total(self) -> int:
        """Number of known trials, with those to come."""
        return max(self._count, len(self._suite_state.rows))

    @property
    def is_exhausted(self) -> bool:
        """Whether it has no more trials."""
        return self._left is None

    def watch(self, suite_state: SuiteState) -> None:
        """Take the suite's state; called once, first."""
        self._suite_state = suite_state

    def more(self, wanted: int) -> Sequence[Trial]:
        """Return at most a block of further trials; empty if there are none at the moment.

        Args:
            wanted: Trials that could begin at once.
        """
        del wanted  # all are there from the start
        new = (each for each in self._left or () if each.number not in self._suite_state.rows)
        block = list(itertools.islice(new, _BLOCK))
        if not block:
            self._left = None
        return block

    def add(self, point: Point) -> Iterable[Trial]:
        """Return the trials of a point that a user adds, with numbers after all others.

        Raises:
            RecipeError: The point cannot be used, or exists.
        """
        return self._maker.trials(point)

    def take(self, entry: Entry) -> None:
        """Take an entry; called in the order of the journal, after the suite's state."""

    def should_prune(self, row: TrialState) -> bool:
        """Whether a running trial is to be ended early, by its metrics so far."""
        del row
        return False


class AssignedTrials(PointSource):
    """Trials of a part of a suite over several sites: they are assigned by commands."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._suite_state = recipe, SuiteState()  # it names no trials
        self._count, self._left = 0, iter(())
        self._is_closed, self._idle_s = False, time.monotonic()

    @property
    def is_exhausted(self) -> bool:
        """Whether no more trials come, or none has come for a while: the part begins again then."""
        return self._is_closed or time.monotonic() - self._idle_s > _IDLE_S

    def close(self, *, is_closed: bool) -> None:
        """Take whether more trials may come; the while begins when all trials have ended."""
        self._is_closed = is_closed
        if self._suite_state.num_ended < len(self._suite_state.rows):
            self._idle_s = time.monotonic()

    def more(self, wanted: int) -> Sequence[Trial]:
        """Return no trials."""
        del wanted
        return ()


def _value_at(base: Any, key: str, own: Sequence[str]) -> Any:
    """Return the value of a key of the recipe."""
    value = base
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            valid = {*(value if isinstance(value, dict) else ()), *(own if value is base else ())}
            raise RecipeError(
                f"'{key}' is not a key of the suite or its recipe", nearest(part, valid)
            ) from None
    return value
