"""Which runs a list has, and marks of runs: records for the terminal, Python, REST and pages."""

from __future__ import annotations

import math
import operator
import re
from calendar import timegm
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Annotated, Any

from pydantic import Field

from headrace.errors import UserError
from headrace.record import Record
from headrace.states import StepState

_CONDITION = re.compile(r"\s*([^=<>!]*[^=<>!\s])\s*(>=|<=|!=|=|<|>)(.*)", re.DOTALL)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge,
}  # fmt: skip

Words = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=20)]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,40}$")]
Tags = Annotated[tuple[Tag, ...], Field(max_length=20)]


class Marks(Record):
    """Changes of the tags, the note and the star of a run."""

    tag: Tags = ()
    """Tags to add: 1 to 40 letters, digits, `.`, `-` or `_`."""
    untag: Tags = ()
    """Tags to remove."""
    note: str | None = Field(default=None, max_length=2000)
    """New note; empty removes it, null leaves it."""
    star: bool | None = None
    """Whether it is starred; null leaves it as it is."""


class RunFilter(Record):
    """Which runs to list, in which order; all conditions hold together, values of one are or-ed."""

    limit: int = Field(default=20, ge=1, le=10_000_000)
    state: tuple[StepState, ...] = ()
    kind: Words = ()
    """Kinds of runs, or `all`; by default all but packings, rehearsals and parts."""
    user: Words = ()
    recipe: Words = ()
    tag: Tags = ()
    """Tags, in upper or lower case; a run has all of them."""
    starred: bool = False
    where: Words = ()
    """Conditions on overrides, `seed`, `dataset` and metrics, as in `lr=0.1` or `accuracy>0.9`."""
    since: str = ""
    """First day (UTC) of their requests: `2026-11-01`, `2026-11`, or `7d` for seven days ago."""
    until: str = ""
    """Last day (UTC), as `since`."""
    text: str = Field(default="", max_length=200)
    """Part of the id, recipe, site, user, dataset, overrides, tags or note, in any case."""
    sort: str = Field(default="", max_length=200)
    """A metric, the best value first; `NAME:min` or `NAME:max` gives the direction. Runs without a
    value come last. Empty: the newest first."""

    @property
    def order(self) -> tuple[str, str]:
        """The metric to sort by, and `min` or `max` if the direction is given."""
        name, _, mode = self.sort.rpartition(":")
        return (name, mode) if name and mode in ("min", "max") else (self.sort, "")


def condition(word: str) -> tuple[str, Callable[[str | float], bool]]:
    """Return the key of a condition such as `lr=0.1`, and whether a value meets it.

    Numbers are compared as numbers. Raises `UserError` if the word is not a condition.
    """
    found = _CONDITION.fullmatch(word)
    if found is None or (found[2] not in ("=", "!=") and math.isnan(_number(found[3]))):
        hint = "Write it as in lr=0.1, name!=resnet or 'accuracy>0.9' (< and > with a number)."
        raise UserError(f"'{word}' is not a condition", hint)
    is_met, text, number = _SIGNS[found[2]], found[3].strip(), _number(found[3])
    if math.isnan(number):
        return found[1], lambda value: is_met(str(value), text)
    return found[1], lambda value: is_met(_number(value), number)


def span_of(text: str) -> tuple[float, float]:
    """Return begin and end of a day or month (UTC), seconds since the epoch; of "" all time.

    Raises `UserError` for a text unlike `2026-11-01`, `2026-11` and `30d`.
    """
    if not text:
        return 0.0, math.inf
    days, is_month = text.removesuffix("d"), text.count("-") == 1
    try:
        if days != text and days.isdecimal():
            begin = datetime.now(timezone.utc).date() - timedelta(days=int(days))
        else:
            begin = date.fromisoformat(f"{text}-01" if is_month else text)
        end = (begin + timedelta(days=31)).replace(day=1) if is_month else begin + timedelta(days=1)
    except (ValueError, OverflowError):
        hint = "Write 2026-11-01, 2026-11, or 30d for thirty days."
        raise UserError(f"'{text}' is not a day", hint) from None
    return timegm(begin.timetuple()), timegm(end.timetuple())


def first_day(text: str) -> str:
    """Return the day of the begin of `span_of`, as `2026-11-01`; empty for an empty text."""
    return f"{datetime.fromtimestamp(span_of(text)[0], timezone.utc).date()}" if text else ""


def _number(value: str | float) -> float:
    """Return a value as a number; NaN if it is not one."""
    try:
        return float(value)
    except ValueError:
        return math.nan
