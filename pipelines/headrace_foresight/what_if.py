"""The same trials on other machines, or with machines shared in another way: scenarios; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast, get_args

import numpy as np

from headrace.errors import UserError
from headrace.record import Record
from headrace.runs.prediction import Forecast, Interval
from headrace.suites.site_plan import Policy
from headrace_foresight.forecast import possible
from headrace_foresight.scenario import Nodes, Order, Scenario, SimulatedJob
from headrace_foresight.simulate import repeated

MOST_SCENARIOS = 200
_EQUAL = 1 + 1e-9


NO_SITE = Nodes(usd_per_hour=None)
"""A node of no site, whose price is unknown."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Trials, and options to try with them: every combination is a scenario."""

    trials: Sequence[Forecast]
    """What each takes alone, in the given order."""
    gpus: int = 1
    """GPUs of each trial."""
    places: tuple[Nodes, ...] = (NO_SITE,)
    """The nodes of each site."""
    nodes: tuple[int, ...] = ()
    """Numbers of nodes; empty: those of the site."""
    spots: tuple[float, ...] = (0.0,)
    """Shares of nodes that are spot instances."""
    packs: tuple[int, ...] = (1,)
    orders: tuple[str, ...] = ("longest",)
    walltimes_s: tuple[float, ...] = (math.inf,)
    interruptions_per_hour: float = 0.0
    """Interruptions of one spot instance."""
    policies: tuple[str, ...] = ()
    """Ways to use all sites together; empty: each site alone."""
    common: Scenario = field(default_factory=Scenario)
    """What all scenarios have in common; its nodes are there besides those of the sites."""


class WhatIfRow(Record):
    """A scenario and its results."""

    site: str
    nodes: int
    spot: float
    """Share of the nodes that are spot instances."""
    pack: int
    """Trials at once on one GPU."""
    order: str
    walltime_s: float | None
    """Time limit of a node; null: none."""
    makespan_s: Interval
    usd: Interval | None
    """US dollars; null if a price is unknown. With a policy, own sites without a price are not
    counted if another site has one."""
    node_hours: Interval
    utilisation: Interval
    waste: Interval
    interruptions: Interval
    policy: str = ""
    """How several sites are used together; empty: they are not."""
    usd_of: dict[str, Interval | None] = {}
    """US dollars by site, with a policy; null if its price is unknown, and not counted."""
    is_fastest: bool = False
    is_cheapest: bool = False


def answer(question: Question, repeats: int = 20, seed: int = 0) -> tuple[WhatIfRow, ...]:
    """Simulate every scenario, and mark the fastest and the cheapest.

    Raises:
        UserError: There are too many, or one can never end.
    """
    unknown = [each for each in question.policies if each not in get_args(Policy)]
    if unknown:
        raise UserError(
            f"Policy '{unknown[0]}' is not known", f"Valid policies: {', '.join(get_args(Policy))}."
        )
    unknown = [each for each in question.orders if each not in get_args(Order)]
    if unknown or any(not 0 <= spot <= 1 for spot in question.spots):
        raise UserError(
            f"Orders are {', '.join(question.orders)}, shares of spot instances "
            f"{', '.join(map(str, question.spots))}",
            f"Valid orders: {', '.join(get_args(Order))}; shares are from 0 to 1.",
        )
    where: Sequence[Nodes | str] = question.policies or question.places
    axes = (
        where, question.nodes or (0,), question.spots, question.packs, question.orders,
        question.walltimes_s,
    )  # fmt: skip
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_SCENARIOS:
        raise UserError(
            f"{count} scenarios are more than the most, {MOST_SCENARIOS}", "Compare fewer at once."
        )
    rows = [_row(question, values, repeats, seed) for values in itertools.product(*axes)]
    fastest_s = min(row.makespan_s.mean for row in rows)
    usd = [math.inf if row.usd is None else row.usd.mean for row in rows]
    return tuple(
        row.model_copy(
            update={
                "is_fastest": row.makespan_s.mean <= fastest_s * _EQUAL,
                "is_cheapest": each < math.inf and each <= min(usd) * _EQUAL,
            }
        )
        for row, each in zip(rows, usd, strict=True)
    )


def _row(
    question: Question,
    values: tuple[Nodes | str, int, float, int, str, float],
    repeats: int,
    seed: int,
) -> WhatIfRow:
    place, count, spot, pack, order, walltime_s = values
    policy = cast("Policy | None", place if isinstance(place, str) else None)
    places = question.places if isinstance(place, str) else (place,)
    kinds = [
        kind
        for each in places
        for kind in _kinds(question, each, count or each.count, spot, walltime_s)
    ]
    scenario = replace(
        question.common,
        nodes=(*kinds, *question.common.nodes),
        policy=policy,
        pack=pack,
        order=cast(Order, order),
    )

    def draw(random: np.random.Generator) -> list[SimulatedJob]:
        return [
            SimulatedJob(seconds=float(seconds), gpus=question.gpus, expected_s=each.seconds)
            for each, seconds in zip(
                question.trials, possible(random, question.trials)[:, 0], strict=True
            )
        ]

    is_certain = all(each.spread == each.shared == 0 for each in question.trials) and not any(
        kind.queue_s or kind.interruptions_per_hour for kind in scenario.nodes
    )
    try:
        found = repeated(draw, scenario, 1 if is_certain else repeats, seed)
    except ValueError as error:
        raise UserError(
            f"With {sum(kind.count for kind in kinds)} nodes of {places[0].gpus} GPUs: {error}"
        ) from error
    figures = {name: found[name] for name in found if name in WhatIfRow.model_fields}
    unpriced = {kind.site for kind in kinds if kind.usd_per_hour is None}
    return WhatIfRow(
        site=policy or places[0].site,
        policy=policy or "",
        usd_of={
            each: None if each in unpriced else found[f"usd {each}"]
            for each in (kind.site for kind in scenario.nodes if policy)
        },
        nodes=sum(kind.count for kind in kinds),
        spot=spot,
        pack=pack,
        order=order,
        walltime_s=None if walltime_s == math.inf else walltime_s,
        **{**figures, "usd": figures["usd"] if _is_priced(scenario, len(kinds)) else None},
    )


def _is_priced(scenario: Scenario, num_of_sites: int) -> bool:
    """Whether the cost of a scenario's nodes is known; the nodes of the sites come first."""
    kinds, others = scenario.nodes[:num_of_sites], scenario.nodes[num_of_sites:]
    unknown = [kind for kind in kinds if kind.usd_per_hour is None]
    if not unknown or scenario.policy is None:
        return not unknown
    has_price = len(unknown) < len(kinds) or any(kind.usd_per_hour for kind in others)
    return has_price and all(kind.is_own for kind in unknown)


def _kinds(
    question: Question, place: Nodes, count: int, spot: float, walltime_s: float
) -> Iterator[Nodes]:
    """Yield nodes on demand, and spot instances."""
    num_spot = round(count * spot)
    shares = (
        (count - num_spot, place.usd_per_hour, 0.0),
        (num_spot, place.spot_usd_per_hour, question.interruptions_per_hour),
    )
    for number, price, interruptions in shares:
        if number:
            yield replace(
                place,
                count=number,
                usd_per_hour=price,
                interruptions_per_hour=interruptions,
                walltime_s=walltime_s,
            )
