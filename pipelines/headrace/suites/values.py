"""Several values of a key in Hydra's words: `model.lr=1e-3,1e-2`, `range(1, 9)`, `interval(0, 1)`.

Words of `headrace sweep` become overrides and a suite; those of a search's space become Optuna's
distributions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from yaml import YAMLError

from headrace.errors import RecipeError, shortened
from headrace.recipe.base import to_json
from headrace.recipe.overrides import (
    as_override,
    check_size,
    in_hydra,
    names_several,
    parts_of,
    read_override,
)
from headrace.recipe.suite import MAX_TRIALS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Update = dict[str, JsonValue]
"""Keys of `suite` that are set."""

_MOST = 1e15
_VALID = "interval(0, 1), tag(log, interval(1e-5, 1e-1)), int(interval(1, 8)), range(1, 9), a,b"


@dataclass(frozen=True)
class Sweep:
    """What Hydra's parser makes of the value of a key."""

    key: str
    words: str
    read: Any
    """Hydra's `Override`."""

    @property
    def is_several(self) -> bool:
        """Whether it is a sweep at all, not one value."""
        return bool(self.read.is_sweep_override())

    @property
    def is_interval(self) -> bool:
        """Whether only a sampler can choose of it."""
        return bool(self.read.is_interval_sweep())

    def values(self) -> tuple[JsonValue, ...]:
        """All values that a choice or range names.

        Raises:
            RecipeError: They are no fixed ones, none, or more than a suite may have trials.
        """
        value = self.read.value()
        if not self.is_several or self.is_interval:
            raise self._wrong("it names no values one by one")
        if hasattr(value, "include"):
            raise self._wrong("glob names files of Hydra's groups, and a recipe has none")
        if value.shuffle:
            raise self._wrong("shuffle gives another order each time")
        count = self._length() if self.read.is_range_sweep() else len(value.list)
        if count > MAX_TRIALS:
            raise too_many(count)
        if count < 1:
            raise self._wrong("it names no value")
        return tuple(_plain(each) for each in self.read.sweep_iterator())

    def domain(self) -> BaseDistribution:
        """Where a sampler may choose.

        Raises:
            RecipeError: The words name no such place.
        """
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_interval:
            low, high, step = self.read.value().start, self.read.value().end, None
            if not (low < high and _are_usual(low, high)):
                raise self._wrong("the first number must be below the second")
        elif self.is_several and self.read.is_range_sweep():
            first, step = self.read.value().start or 0, self.read.value().step
            count = self._length()
            if count < 1:
                raise self._wrong("it names no value")
            if self._is_log():
                raise self._wrong("log goes with interval, as in tag(log, int(interval(1, 8)))")
            low, high = sorted((first, first + (count - 1) * step))
            step = abs(step)
        else:
            return _choice(self.values())
        is_log = self._is_log()
        if is_log and low <= 0:
            raise self._wrong("a logarithmic interval begins above 0")
        if all(isinstance(each, int) for each in (low, high, step or 1)):
            return IntDistribution(low, high, log=is_log, step=step or 1)
        return FloatDistribution(low, high, log=is_log, step=step)

    def _length(self) -> int:
        """Numbers of a range."""
        value = self.read.value()
        start, stop, step = value.start or 0, value.stop or 0, value.step
        if not step or not _are_usual(start, stop, step):
            raise self._wrong("start, stop and step must be numbers, and step not 0")
        if abs(stop - start) > abs(step) * _MOST:
            raise self._wrong("it names more values than anyone can count")
        return int(max(0, math.ceil((stop - start) / step)))

    def _is_log(self) -> bool:
        tags = set(self.read.value().tags)
        if tags - {"log"}:
            raise self._wrong(f"the tag is {', '.join(sorted(tags))}, and only log is known")
        return bool(tags)

    def _wrong(self, why: str) -> RecipeError:
        return _wrong_words(self.key, self.words, why)


def read_words(key: str, words: str) -> Sweep:
    """What Hydra's parser makes of a value.

    Raises:
        RecipeError: It cannot be read.
    """
    try:
        return Sweep(key, words, in_hydra(words))
    except YAMLError as error:
        raise _wrong_words(key, words, " ".join(str(error).split())) from None


def domain_of(key: str, words: JsonValue) -> BaseDistribution:
    """Where a key of `suite.search.space` may lie; choices are kept as JSON: Optuna knows no lists.

    Raises:
        RecipeError: The words name no such place.
    """
    if isinstance(words, list | tuple) and words:
        return _choice(tuple(words))
    if not isinstance(words, str):
        raise _wrong_words(key, words, "a sampler has nothing to choose")
    return read_words(key, words).domain()


def ends_of(domain: BaseDistribution) -> tuple[JsonValue, ...]:
    """The lowest and the highest value of a domain, or all its choices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, CategoricalDistribution):
        return tuple(json.loads(str(choice)) for choice in domain.choices)
    if isinstance(domain, FloatDistribution | IntDistribution):
        return domain.low, domain.high
    raise TypeError(f"unknown distribution {domain}")


def log_keys(space: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the keys of `suite.search.space` that are sampled on a logarithmic scale.

    Raises:
        RecipeError: As `domain_of`.
    """
    domains = {key: domain_of(key, words) for key, words in space.items()}
    return tuple(key for key, domain in domains.items() if getattr(domain, "log", False))


def parse(words: Sequence[str], *, trials: int | None = None) -> tuple[tuple[str, ...], Update]:
    """Split words into ordinary overrides and those that name several values of a key.

    Args:
        words: `key=value` as for `load_recipe`, or `key=` and what Hydra calls a sweep.
        trials: Points that a sampler proposes; all sweeps are its space then. Null: they are a
            grid, but an interval needs a sampler: `suite.search.trials` of the recipe counts.

    Returns:
        The overrides as they are written, and the keys of `suite` that the sweeps set: `grid`,
        `seeds`, `search`. Values of `seed` are repeats of each point.

    Raises:
        RecipeError: A word is malformed, or a sweep that is not allowed here.
    """
    check_size(words)
    plain: list[str] = []
    swept: dict[str, Sweep] = {}
    for word in words:
        sign, key, value = parts_of(word)
        sweep = None if sign == "~" else _sweep(key, value)
        if sweep is None:
            read_override(word)
            plain.append(word)
        elif key in swept:
            raise RecipeError(f"'{key}' is given twice", "Name all its values in one word.")
        else:
            swept[key] = sweep
    return tuple(plain), _update(swept, trials)


def as_overrides(update: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the keys that sweeps set, as overrides of a recipe."""
    return tuple(as_override(f"suite.{key}", value) for key, value in update.items())


def too_many(count: int) -> RecipeError:
    """Return the error for a suite with too many trials."""
    number = f"{count:,}" if count < 10**18 else "more than 10^18"
    return RecipeError(
        f"The suite has {number} trials; at most {MAX_TRIALS:,} are run",
        "Leave values out, or let a sampler choose: suite.search, or --trials N.",
    )


def _sweep(key: str, value: str) -> Sweep | None:
    if not any(sign in value for sign in ",("):
        return None
    try:
        sweep = read_words(key, value)
    except RecipeError:
        if names_several(value):
            raise
        return None  # YAML that Hydra's grammar does not know
    return sweep if sweep.is_several else None


def _update(swept: dict[str, Sweep], trials: int | None) -> Update:
    is_search = trials is not None or any(each.is_interval for each in swept.values())
    seeds = swept.pop("seed").values() if "seed" in swept else ()
    update: Update = {"seeds": list(seeds)} if seeds else {}
    if is_search:
        space: Update = {key: sweep.words for key, sweep in swept.items()}
        named: Update = {} if trials is None else {"trials": trials}
        return {**update, "search": {**({"space": space} if space else {}), **named}}
    grid = {key: list(sweep.values()) for key, sweep in swept.items()}
    count = math.prod(map(len, grid.values())) * max(1, len(seeds))
    if count > MAX_TRIALS:
        raise too_many(count)
    return {**update, **({"grid": dict(grid)} if grid else {})}


def _choice(values: Sequence[JsonValue]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution([json.dumps(value) for value in values])


def _plain(value: Any) -> Any:
    """Return an element of Hydra as JSON; a quoted text without its quotes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return to_json({_plain(key): _plain(each) for key, each in value.items()})
    return getattr(value, "text", value)


def _wrong_words(key: str, words: object, why: str) -> RecipeError:
    what = f"The values of '{key}' are {shortened(repr(words))}: {shortened(why, 1000)}"
    return RecipeError(what, f"Valid: {_VALID}.")


def _are_usual(*numbers: float) -> bool:
    """Whether all numbers are finite and within the limit."""
    return all(abs(number) <= _MOST for number in numbers)
