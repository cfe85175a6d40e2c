"""Durations from the user: as text, in a CSV file, or only their bounds and their sum."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.errors import UserError, shortened
from headrace.recipe.base import MAX_SECONDS
from headrace_foresight.forecast import Floats

_UNITS_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")
_COLUMNS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
_SIGMAS = 6.0
"""Standard deviations between the bounds, if only these are known."""


def duration_of(text: str) -> float:
    """Return the seconds of a duration such as `90`, `30min`, `1h2m` or `10d16h`.

    Raises:
        UserError: It is not a duration, or not above zero.
    """
    words = text.replace(" ", "")
    plain = re.fullmatch(r"\d+(?:\.\d+)?", words)
    parts = _PART.findall(words)
    if plain is None and "".join(number + unit for number, unit in parts) != words:
        parts = []
    seconds = float(words) if plain else sum(float(each) * _UNITS_S[unit] for each, unit in parts)
    if not 0 < seconds <= MAX_SECONDS:
        raise UserError(f"'{shortened(text)}' is not a duration", "Valid: 90s, 1h2m, 10d16h.")
    return seconds


def filling(low_s: float, high_s: float, count: int, total_s: float | None = None) -> Floats:
    """Return `(count,)` seconds between two bounds, the longest first: quantiles of a distribution.

    It is a log-normal distribution between the bounds, which lie six of its standard deviations
    apart. Its median gives the wanted sum; without a sum it is the geometric mean of the bounds.
    One duration is the lower bound, one the upper. A long tail of this shape is an assumption: only
    the bounds are known.

    Raises:
        UserError: The bounds are invalid, or no durations between them have this sum.
    """
    from scipy.optimize import brentq

    if not 0 < low_s < high_s or count < 2:
        raise UserError(
            f"{count} durations from {low_s:g} s to {high_s:g} s are not a range",
            "Give a shorter one, a longer one and how many, as in --duration 1h:10d --trials 100.",
        )
    low, high = math.log(low_s), math.log(high_s)
    spread, middle = (high - low) / _SIGMAS, (low + high) / 2

    def excess(median: float) -> float:
        return float(_between(low, high, count, (median, spread)).sum()) - (total_s or 0.0)

    if total_s is not None:
        reach = 5 * spread
        least, most = excess(middle - reach), excess(middle + reach)
        if not least < 0 < most:
            raise UserError(
                f"{count} durations from {low_s:g} s to {high_s:g} s cannot take {total_s:g} s",
                f"They take {least + total_s:g} to {most + total_s:g} s: change --total.",
            )
        middle = brentq(excess, middle - reach, middle + reach)
    return _between(low, high, count, (middle, spread))[::-1]


def _between(low: float, high: float, count: int, shape: tuple[float, float]) -> Floats:
    """Return quantiles of a log-normal distribution that is cut off at two logarithms."""
    from scipy.special import ndtr, ndtri

    middle, spread = shape
    begin, end = ndtr((low - middle) / spread), ndtr((high - middle) / spread)
    shares = (np.arange(1, count - 1) + 0.5) / count
    inner = middle + spread * ndtri(begin + shares * (end - begin))
    return np.asarray(np.exp([low, *np.clip(inner, low, high), high]))


def read_durations(path: Path) -> list[float]:
    """Return the seconds of a CSV file by its column `seconds`, `minutes`, `hours` or `duration`.

    Raises:
        UserError: It has none of these, or a value is not a duration; the message names the line.
    """
    try:
        with path.open(newline="") as file:
            found = list(_rows(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}", "Give a text file.") from error
    if not found:
        raise UserError(f"{path} has no durations", "It needs a line of titles, and one a trial.")
    return found


def _rows(path: Path, rows: csv.DictReader[str]) -> Iterator[float]:
    titles = rows.fieldnames or []
    column = next((each for each in titles if each in (*_COLUMNS, "duration")), None)
    if column is None:
        raise UserError(
            f"{path} has the columns {', '.join(titles) or 'none'}, none of them with durations",
            "Name one of them seconds, minutes, hours or duration (with values such as 1h2m).",
        )
    for row in rows:
        yield _seconds(f"{path}, line {rows.line_num}", column, row)


def _seconds(where: str, column: str, row: Mapping[str, str | None]) -> float:
    text = row[column] or ""
    try:
        if column == "duration":
            return duration_of(text)
        seconds = float(text) * _COLUMNS[column]
    except (ValueError, UserError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{where}: '{text}' is not a duration", f"Write a number of {column}.")
    return seconds
