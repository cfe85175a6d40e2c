"""Curves of trainings, of one run or trial or of several over each other, and how these differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.runs.origin import Beside, origin, side_by_side
from headrace.steps.history import History, read_history, series_of, thinned

MOST_POINTS = 2000
"""Points of a curve that are shown, its peaks among them."""


class Curve(Record):
    """One curve; values that are no number are null."""

    name: str
    kind: Literal["loss", "metric", "lr"]
    x: tuple[float, ...]
    """Optimizer steps."""
    y: tuple[float | None, ...]


class RunCurves(Record):
    """The curves of a run or trial."""

    run_id: str
    """`RUN`, or `SUITE:NUMBER` of a trial."""
    series: tuple[Curve, ...]


class CurvesPage(Record):
    """The curves of some runs."""

    runs: tuple[RunCurves, ...]


class ComparePage(Record):
    """In what some runs or trials differ."""

    names: tuple[str, ...]
    rows: tuple[Beside, ...]
    """A value of each, in the order of the names."""


def curves_page(names: Iterable[str]) -> CurvesPage:
    """The curves of runs, and of trials by `SUITE:NUMBER`.

    Raises:
        UnknownNameError: There is no such run.
    """
    return CurvesPage(runs=tuple(curves_of(name, read_history(_folder(name))) for name in names))


def compare_page(names: Sequence[str]) -> ComparePage:
    """In what runs or trials differ: metrics, recipe, data, code, packages.

    Raises:
        UnknownNameError: There is no such run, or the trial has not begun.
        StepError: A folder is gone or damaged.
    """
    return ComparePage(names=tuple(names), rows=side_by_side([origin(name) for name in names]))


def _folder(name: str) -> RunFolder:
    run_id, _, number = name.partition(":")
    folder = RunFolder(Path(open_ledger().run(run_id).folder))
    return folder.trial(int(number)) if number.isdecimal() else folder


def curves_of(run_id: str, history: History) -> RunCurves:
    """The curves of a run by its history."""
    found = []
    for name, kind, points in series_of(history):
        steps, values = zip(*thinned(points, MOST_POINTS), strict=True)
        found.append(Curve(name=name, kind=kind, x=steps, y=values))
    return RunCurves(run_id=run_id, series=tuple(found))
