"""How disturbed runs ended, the run that they are compared with, and a table of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


Hits = tuple[str, str, str]
"""Trials that were alike: phase of the run, kind of process that was hit, what it got."""


def tally(outcomes: Iterable[Outcome]) -> dict[Hits, list[Outcome]]:
    """Outcomes by what was done, in the order of a run's phases, without those that hit nothing."""
    groups: dict[Hits, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.hit is not None:
            key = (outcome.hit.phase, outcome.hit.role, outcome.trial.signal)
            groups.setdefault(key, []).append(outcome)
    return {key: groups[key] for key in sorted(groups, key=_place)}


def counted(group: Sequence[Outcome]) -> dict[str, int]:
    """How many there are, and how they ended; those that hung may have left anything."""
    return {
        "trials": len(group),
        "well": sum(each.is_well for each in group),
        "resumed": sum(len(each.commands) > 1 for each in group),
        "wrong": sum(bool(each.wrong) for each in group),
        "hung": sum(bool(each.hung) for each in group),
        "left over": sum(bool(each.left) and not each.hung for each in group),
    }


def _place(key: Hits) -> tuple[int, str]:
    phase, role, signal = key
    known = {target: number for number, target in enumerate(TARGETS)}
    return known.get((phase, role), len(known)), f"{phase}/{role}/{signal}"
