"""What runs and leases cost, for people."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.runs.costs import Cost, CostLine, MostCost


def cost_words(cost: Cost) -> str:
    """What something has cost so far, and of what."""
    return "\n".join((_sum(cost), *(_line(each) for each in cost.lines)))


def most_words(most: MostCost | None) -> str:
    """What a lease costs at most, or why nobody knows; empty where it costs nothing."""
    if most is None:
        return ""
    if most.usd is None:
        return f"what it costs is not known: {most.why}"
    return f"costs ${most.usd:,.2f} at most: {most.why}"


def _sum(cost: Cost) -> str:
    return ", ".join((f"${cost.usd:,.2f} for {cost.hours:,.2f} hours", *_doubts(cost)))


def _doubts(cost: Cost) -> Iterator[str]:
    if cost.unpriced:
        yield f"and what {cost.unpriced} machines cost whose price is not known"
    if cost.estimated:
        yield f"the end of {cost.estimated} machines is an estimate"


def _line(line: CostLine) -> str:
    usd = "?" if line.usd is None else f"${line.usd:,.2f}"
    what = f"{line.kind} ({line.market})" if line.market else line.kind
    role = f"{line.role}: " if line.role else ""
    return f"{role}{usd}: {line.machines} x {what}, {line.hours:,.2f} h, {line.price}"
