"""Curves of trainings, of one run or of several over each other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.steps.history import History, read_history
from headrace.steps.series import series_of, thinned

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
    """The curves of a run."""

    run_id: str
    series: tuple[Curve, ...]


class CurvesPage(Record):
    """The curves of some runs."""

    runs: tuple[RunCurves, ...]


def curves_page(run_ids: Iterable[str]) -> CurvesPage:
    """The curves of runs.

    Raises:
        UnknownNameError: There is no such run.
    """
    folders = [RunFolder(Path(open_ledger().run(run_id).folder)) for run_id in run_ids]
    return CurvesPage(runs=tuple(curves_of(each.run_id, read_history(each)) for each in folders))


def curves_of(run_id: str, history: History) -> RunCurves:
    """The curves of a run by its history."""
    found = []
    for name, kind, points in series_of(history):
        steps, values = zip(*thinned(points, MOST_POINTS), strict=True)
        found.append(Curve(name=name, kind=kind, x=steps, y=values))
    return RunCurves(run_id=run_id, series=tuple(found))
