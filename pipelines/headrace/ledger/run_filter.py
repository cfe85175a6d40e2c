"""Which runs a list has: one record of filters for the terminal, Python, REST and pages."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from headrace.errors import UserError
from headrace.record import Record
from headrace.states import StepState

ALL = "all"
"""Every kind of run."""

_CONDITION = re.compile(r"\s*([^=<>!]*[^=<>!\s])\s*(>=|<=|!=|=|<|>)(.*)", re.DOTALL)
_DAY = re.compile(r"(\d{4}-\d\d)(-\d\d)?")
_DAYS = re.compile(r"(\d{1,5})d")

Words = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=20)]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,40}$")]


class Condition(NamedTuple):
    """A condition on an override or a metric."""

    key: str
    """Dotted, or the part behind the last dot; the name of a metric."""
    sign: str
    text: str
    number: float | None
    """The text as a number; None if it is not one."""


class Marks(Record):
    """Changes of the tags, the note and the star of a run."""

    tag: tuple[Tag, ...] = Field(default=(), max_length=20)
    """Tags to add: 1 to 40 letters, digits, `.`, `-` or `_`."""
    untag: tuple[Tag, ...] = Field(default=(), max_length=20)
    """Tags to remove."""
    note: str | None = Field(default=None, max_length=2000)
    """New note; empty removes it, null leaves it."""
    star: bool | None = None
    """Whether it is starred; null leaves it as it is."""


class RunFilter(Record):
    """Which runs to list, in which order; all conditions hold together, values of one are or-ed."""

    limit: int = Field(default=20, ge=1)
    state: tuple[StepState, ...] = ()
    kind: Words = ()
    """Kinds of runs, or `all`; by default all but packings and rehearsals."""
    user: Words = ()
    recipe: Words = ()
    tag: tuple[Tag, ...] = Field(default=(), max_length=20)
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
    """A metric, the best value first; `NAME:min`, `NAME:max` or `-NAME` (greatest first) give the
    direction. Runs without a value come last. Empty: the newest first."""

    @field_validator("where")
    @classmethod
    def _readable(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            _condition(word)
        return words

    @field_validator("since", "until")
    @classmethod
    def _is_day(cls, text: str) -> str:
        span_of(text)
        return text

    @property
    def span(self) -> tuple[float, float]:
        """First second that is included, and the first that is not, since the epoch."""
        return span_of(self.since)[0], span_of(self.until)[1]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of `where`."""
        return tuple(map(_condition, self.where))

    @property
    def order(self) -> tuple[str, Literal["min", "max"] | None]:
        """The metric to sort by, and whether its least or greatest value is first if given."""
        if self.sort.startswith("-"):
            return self.sort[1:], "max"
        name, _, mode = self.sort.rpartition(":")
        if name and mode in ("min", "max"):
            return name, "min" if mode == "min" else "max"
        return self.sort, None


def span_of(text: str) -> tuple[float, float]:
    """Return begin and end of a day or month (UTC), seconds since the epoch; of "" all time.

    Raises:
        UserError: The text is not `2026-11-01`, `2026-11` or `30d`.
    """
    if not text:
        return 0.0, float("inf")
    days, day = _DAYS.fullmatch(text), _DAY.fullmatch(text)
    try:
        if days:
            today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
            begin, is_month = today - timedelta(days=int(days[1])), False
        else:
            is_month = day is not None and day[2] is None
            begin = datetime.strptime(f"{text}-01" if is_month else text, "%Y-%m-%d")
            begin = begin.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        hint = "Write 2026-11-01, 2026-11, or 30d for thirty days."
        raise UserError(f"'{text}' is not a day", hint) from None
    end = begin + timedelta(days=31 if is_month else 1)
    return begin.timestamp(), (end.replace(day=1) if is_month else end).timestamp()


def first_day(text: str) -> str:
    """Return the day of the begin of `span_of`, as `2026-11-01`; empty for an empty text."""
    return f"{datetime.fromtimestamp(span_of(text)[0], timezone.utc):%Y-%m-%d}" if text else ""


def number_of(text: str) -> float | None:
    """Return a text as a number; None if it is not one, or NaN."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _condition(word: str) -> Condition:
    found = _CONDITION.fullmatch(word)
    if found is None:
        raise UserError(f"'{word}' is not a condition", "Write it as in lr=0.1 or 'accuracy>0.9'.")
    key, sign, text = found[1], found[2], found[3].strip()
    number = number_of(text)
    if number is None and "=" != sign != "!=":
        hint = f"After {sign} comes a number, as in '{key}{sign}0.9'."
        raise UserError(f"'{text}' of '{word}' is not a number", hint)
    return Condition(key, sign, text, number)
