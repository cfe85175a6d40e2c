"""Points of a suite from a CSV file: a column for each key, a row for each point."""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue
from yaml import YAMLError

from headrace.errors import RecipeError
from headrace.recipe.suite import MAX_KEYS, MAX_TRIALS
from headrace.recipe.yaml_text import parsed
from headrace.suites.records import Point

_INT = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


def read_points(file: str) -> tuple[Point, ...]:
    """The points of a file, values typed as in YAML; an empty cell leaves its key as it is.

    Raises:
        RecipeError: The file cannot be read, or a row does not fit its header.
    """
    path = Path(file).expanduser()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, strict=True)
            header = [key.strip() for key in next(rows, [])]
            _check_header(file, header)
            points: list[Point] = []
            for row in rows:
                if row:
                    points.append(_point(file, rows.line_num, header, row))
                if len(points) > MAX_TRIALS:
                    raise RecipeError(f"suite.file '{file}' has more than {MAX_TRIALS:,} rows")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(
            f"suite.file '{file}' cannot be read: {error}",
            f"Give a CSV file in UTF-8 with a header of keys; seen from {Path.cwd()}.",
        ) from None
    if not points:
        raise RecipeError(f"suite.file '{file}' has a header and no row")
    return tuple(points)


def _check_header(file: str, header: list[str]) -> None:
    if not header or not all(header):
        raise RecipeError(
            f"suite.file '{file}' begins with {header}",
            "Its first line has the key of each column: model.lr,trainer.max_epochs.",
        )
    if len(header) > MAX_KEYS:
        raise RecipeError(f"suite.file '{file}' has {len(header):,} columns; at most {MAX_KEYS}")
    twice = {key for key in header if header.count(key) > 1}
    if twice:
        raise RecipeError(f"suite.file '{file}' has two columns of '{min(twice)}'")


def _point(file: str, line: int, header: list[str], row: list[str]) -> Point:
    if len(row) != len(header):
        raise RecipeError(
            f"suite.file '{file}' has {len(row)} values in line {line}, and {len(header)} columns",
            "A value with a comma stands in double quotes.",
        )
    try:
        return {key: _value(cell) for key, cell in zip(header, row, strict=True) if cell.strip()}
    except YAMLError as error:
        raise RecipeError(
            f"suite.file '{file}', line {line}: a value is no YAML: {error}"
        ) from None


@lru_cache(maxsize=4096)
def _value(cell: str) -> JsonValue:
    text = cell.strip()
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    value: JsonValue = parsed(f"value: {text}", is_plain=True)["value"]
    return value
