"""Several values of a key in the words of Hydra's sweeps: `interval(0, 1)`, `range(1, 9)`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from headrace.errors import RecipeError, shortened
from headrace.recipe.suite import MAX_TRIALS
from headrace.record import Record

_MOST = 1e15
_VALID = "interval(0, 1), tag(log, interval(1e-5, 1e-1)), int(interval(1, 8)), range(1, 9), a,b"


class Interval(Record):
    """Numbers between two others, both included."""

    low: float
    high: float
    is_int: bool = False
    """Whether they are whole."""
    is_log: bool = False
    """Whether each order of magnitude is as likely as another."""
    step: float | None = None
    """Distance between neighbours; null: of whole numbers 1, else any number."""

    @property
    def ends(self) -> tuple[JsonValue, ...]:
        """The lowest and the highest."""
        return (int(self.low), int(self.high)) if self.is_int else (self.low, self.high)


class Choice(Record):
    """One of several values."""

    values: tuple[JsonValue, ...]

    @property
    def ends(self) -> tuple[JsonValue, ...]:
        """All of them."""
        return self.values


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

    def domain(self) -> Interval | Choice:
        """Where a sampler may choose.

        Raises:
            RecipeError: The words name no such place.
        """
        if self.is_interval:
            return self._interval()
        if self.is_several and self.read.is_range_sweep():
            return self._range()
        return Choice(values=self.values())

    def _interval(self) -> Interval:
        low, high = self.read.value().start, self.read.value().end
        if not (low < high and _are_usual(low, high)):
            raise self._wrong("the first number must be below the second")
        is_log = self._is_log()
        if is_log and low <= 0:
            raise self._wrong("a logarithmic interval begins above 0")
        is_int = isinstance(low, int) and isinstance(high, int)
        return Interval(low=low, high=high, is_int=is_int, is_log=is_log)

    def _range(self) -> Interval:
        count = self._length()
        if count < 1:
            raise self._wrong("it names no value")
        if self._is_log():
            raise self._wrong("log goes with interval, as in tag(log, int(interval(1, 8)))")
        first, step = self.read.value().start or 0, self.read.value().step
        low, high = sorted((first, first + (count - 1) * step))
        is_int = isinstance(first, int) and isinstance(step, int)
        return Interval(low=low, high=high, is_int=is_int, step=abs(step))

    def _length(self) -> int:
        """Numbers of a range."""
        value = self.read.value()
        start, stop, step = value.start or 0, value.stop or 0, value.step
        if not step or not _are_usual(start, stop, step):
            raise self._wrong("start, stop and step must be numbers, and step not 0")
        if abs(stop - start) > abs(step) * 1e15:
            raise self._wrong("it names more values than anyone can count")
        return int(max(0, math.ceil((stop - start) / step)))

    def _is_log(self) -> bool:
        tags = set(self.read.value().tags)
        if tags - {"log"}:
            raise self._wrong(f"the tag is {', '.join(sorted(tags))}, and only log is known")
        return bool(tags)

    def _wrong(self, why: str) -> RecipeError:
        return wrong_words(self.key, self.words, why)


def read_words(key: str, words: str) -> Sweep:
    """What Hydra's parser makes of a value.

    Raises:
        RecipeError: It cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # takes 0.1 s
    from hydra.errors import HydraException

    try:
        return Sweep(key, words, OverridesParser.create().parse_override(f"key={words}"))
    except (HydraException, ValueError, RecursionError) as error:  # as of 5000 digits
        raise wrong_words(key, words, " ".join(str(error).split())) from None


def domain_of(key: str, words: JsonValue) -> Interval | Choice:
    """Where a key of `suite.search.space` may lie.

    Raises:
        RecipeError: The words name no such place.
    """
    if isinstance(words, list | tuple) and words:
        return Choice(values=tuple(words))
    if not isinstance(words, str):
        raise wrong_words(key, words, "a sampler has nothing to choose")
    return read_words(key, words).domain()


def wrong_words(key: str, words: object, why: str) -> RecipeError:
    """The error for words that do not name several values."""
    told = f"The values of '{key}' are {shortened(repr(words))}: {shortened(why, 1000)}"
    return RecipeError(told, f"Valid: {_VALID}.")


def _are_usual(*numbers: float) -> bool:
    """Whether none is NaN, infinite, or larger than any that means something."""
    return all(abs(number) <= _MOST for number in numbers)


def too_many(count: int) -> RecipeError:
    """The error for a suite of so many trials."""
    told = f"{count:,}" if count < 10**18 else "more than 10^18"
    return RecipeError(
        f"The suite has {told} trials; at most {MAX_TRIALS:,} are run",
        "Leave values out, or let a sampler choose: suite.search, or --trials N.",
    )


def _plain(value: Any) -> JsonValue:
    """An element of Hydra's as a plain value; a quoted text without its quotes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    plain: JsonValue = getattr(value, "text", value)
    return plain


def log_keys(space: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Keys of `suite.search.space` of which each order of magnitude is as likely as another.

    Raises:
        RecipeError: As `domain_of`.
    """
    domains = {key: domain_of(key, words) for key, words in space.items()}
    return tuple(key for key, it in domains.items() if isinstance(it, Interval) and it.is_log)
