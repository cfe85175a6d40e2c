"""Results of the GPU check: rows with figures and goals, and the report of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import computed_field

from headrace.record import Figures
from headrace_bench.records import MachineReport

Outcome = Literal["ok", "failed", "skipped", "measured"]


class GpuRow(Figures):
    """One result of the check."""

    name: str
    outcome: Outcome
    """`measured` is a figure without a goal, `skipped` means that it cannot be checked here."""
    told: str
    """The finding; if it failed or was skipped, the reason."""
    figure: float | None = None
    """The measured value, in `unit`; null if it is not finite."""
    unit: str = ""
    """Unit of `figure` and `goal`; empty for a ratio."""
    goal: float | None = None
    """Least or greatest allowed `figure`; null without a goal."""


Rows = tuple[GpuRow, ...]
"""Results of a part, one or several."""


class PartRows(Figures):
    """Results of a part."""

    rows: Rows = ()
    problem: str = ""
    """The error it raised; empty if it has ended well."""


class GpuReport(MachineReport):
    """A whole check."""

    gpus: tuple[str, ...]
    """Names and driver of the GPUs, from `nvidia-smi`."""
    rows: Rows

    @computed_field  # type: ignore[prop-decorator]
    @property
    def has_passed(self) -> bool:
        """Whether no row has failed; skipped rows do not count as failed."""
        return all(row.outcome != "failed" for row in self.rows)


def judged(
    name: str,
    figure: float,
    finding: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "",
) -> GpuRow:
    """Return a row with a figure, compared with its goal if it has one; NaN reaches no goal."""
    goal = at_least if at_most is None else at_most
    if goal is None:
        return _row(name, "measured", finding, figure=figure, unit=unit)
    is_met = figure >= goal if at_most is None else figure <= goal
    words = f"{finding}; goal: at {'least' if at_most is None else 'most'} {goal:g}"
    return _row(name, "ok" if is_met else "failed", words, figure=figure, unit=unit, goal=goal)


def confirmed(name: str, finding: str, problems: Sequence[str]) -> GpuRow:
    """Return a failed row with the problems, or without any a row with the finding."""
    return failed(name, "; ".join(problems)) if problems else _row(name, "ok", finding)


def failed(name: str, reason: str) -> GpuRow:
    """Return a failed row, with the reason in one line."""
    return _row(name, "failed", " ".join(reason.split()))


def skipped(name: str, reason: str) -> GpuRow:
    """Return a row of a part that cannot be checked here."""
    return _row(name, "skipped", reason)


def _row(name: str, outcome: Outcome, finding: str, **figures: Any) -> GpuRow:
    return GpuRow(name=name, outcome=outcome, told=finding, **figures)
