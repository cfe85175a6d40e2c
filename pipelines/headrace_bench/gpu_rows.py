"""What the GPU check tells: rows with figures and goals, and the report of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import computed_field

from headrace.record import Figures
from headrace_bench.records import BenchMachine


class GpuRow(Figures):
    """One thing that was looked at."""

    name: str
    outcome: Literal["ok", "failed", "skipped", "measured"]
    """`measured` is a figure without a goal, `skipped` what cannot be looked at here."""
    told: str
    """What was found; of what failed or was skipped, why."""
    figure: float | None = None
    """What was measured, in `unit`; null where that is no number."""
    unit: str = ""
    """Of `figure` and `goal`; empty of a ratio."""
    goal: float | None = None
    """What `figure` should be at least, or at most; null without one."""


class PartRows(Figures):
    """What a part leaves."""

    rows: tuple[GpuRow, ...] = ()
    problem: str = ""
    """What it raised; empty where it has ended well."""


class GpuReport(Figures):
    """A whole check."""

    command: str
    date: str
    """When it began, UTC."""
    machine: BenchMachine
    gpus: tuple[str, ...]
    """Names and driver of the GPUs, as `nvidia-smi` tells."""
    rows: tuple[GpuRow, ...]
    seconds: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def has_passed(self) -> bool:
        """Whether nothing has failed; what was skipped has not."""
        return all(row.outcome != "failed" for row in self.rows)


def judged(
    name: str,
    figure: float,
    told: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "",
) -> GpuRow:
    """A row with a figure, also told in words, held against its goal; not a number reaches none."""
    goal = at_least if at_most is None else at_most
    if goal is None:
        return GpuRow(name=name, outcome="measured", told=told, figure=figure, unit=unit)
    is_met = figure >= goal if at_most is None else figure <= goal
    words = f"{told}; goal: at {'least' if at_most is None else 'most'} {goal:g}"
    return GpuRow(
        name=name,
        outcome="ok" if is_met else "failed",
        told=words,
        figure=figure,
        unit=unit,
        goal=goal,
    )


def confirmed(name: str, told: str, problems: Sequence[str]) -> GpuRow:
    """A row that failed where there are problems, and else tells what was found."""
    if problems:
        return GpuRow(name=name, outcome="failed", told="; ".join(problems))
    return GpuRow(name=name, outcome="ok", told=told)


def skipped(name: str, reason: str) -> GpuRow:
    """A row of what cannot be looked at here."""
    return GpuRow(name=name, outcome="skipped", told=reason)
