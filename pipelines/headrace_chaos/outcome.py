"""How disturbed runs ended, the run that they are compared with, and a table of all."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.record import Record
from headrace_chaos.checks import Result
from headrace_chaos.disturbance import Hit
from headrace_chaos.trials import TARGETS, Trial


class Reference(Record):
    """The run that nobody disturbs."""

    result: Result
    """What it gave."""
    spans: dict[str, float]
    """Seconds that processes lived, by `phase/role`."""


class Outcome(Record):
    """How a disturbed run ended."""

    trial: Trial
    """What was to be done to it."""
    hit: Hit | None
    """What was done; None when it had ended before."""
    commands: tuple[str, ...]
    """Commands that its user needed, and how they ended."""
    seconds: float
    """From its start to its end, seconds."""
    wrong: tuple[str, ...] = ()
    """How its result differs from the reference."""
    hung: str = ""
    """What was waited for in vain; empty when all ended in time."""
    left: tuple[str, ...] = ()
    """What it left behind, with processes that were there when it hung."""

    @property
    def is_well(self) -> bool:
        """Whether it ended as if nothing had been done to it."""
        return not (self.wrong or self.hung or self.left)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Trials that were alike."""

    phase: str
    """Phase of the run."""
    role: str
    """Kind of process that was hit."""
    signal: str
    """What it got."""
    num_trials: int
    """Trials."""
    num_well: int
    """Those that ended as if nothing had been done."""
    num_resumed: int
    """Those that needed `headrace resume`, or to be started again."""
    num_wrong: int
    """Those with a result other than the reference's."""
    num_hung: int
    """Those that did not end in time."""
    num_left: int
    """Those that left something behind."""
    median_s: float
    """Median time of a run, seconds."""


def tally(outcomes: Iterable[Outcome]) -> tuple[Row, ...]:
    """The table, in the order of a run's phases; trials that hit nothing are left out."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.hit is not None:
            key = (outcome.hit.phase, outcome.hit.role, outcome.trial.signal)
            groups.setdefault(key, []).append(outcome)
    return tuple(_row(key, groups[key]) for key in sorted(groups, key=_place))


def total(outcomes: Iterable[Outcome]) -> Row:
    """All trials that hit something as one row."""
    return _row(("all", "", ""), [each for each in outcomes if each.hit is not None])


def _row(key: tuple[str, str, str], group: list[Outcome]) -> Row:
    phase, role, signal = key
    return Row(
        phase=phase,
        role=role,
        signal=signal,
        num_trials=len(group),
        num_well=sum(each.is_well for each in group),
        num_resumed=sum(len(each.commands) > 1 for each in group),
        num_wrong=sum(bool(each.wrong) for each in group),
        num_hung=sum(bool(each.hung) for each in group),
        num_left=sum(bool(each.left) and not each.hung for each in group),
        median_s=statistics.median([each.seconds for each in group] or [0.0]),
    )


def _place(key: tuple[str, str, str]) -> tuple[int, str]:
    phase, role, signal = key
    known = {target: number for number, target in enumerate(TARGETS)}
    return known.get((phase, role), len(known)), f"{phase}/{role}/{signal}"
