"""The same trials on other machines, or with machines shared in another way: scenarios; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from headrace.errors import UserError
from headrace.record import Record
from headrace_foresight.forecast import Forecast, possible
from headrace_foresight.scenario import Nodes, Order, Outcome, Scenario, SimulatedJob
from headrace_foresight.simulate import repeated

MOST_SCENARIOS = 200
_EQUAL = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class Place:
    """Properties of a site's nodes; times and prices of one node."""

    name: str = ""
    """Name of the site; empty: no site."""
    nodes: int = 1
    """Number of its nodes, if no number is given."""
    gpus: int = 1
    usd_per_hour: float | None = None
    """US dollars; None: unknown."""
    spot_usd_per_hour: float | None = None
    queue_s: float = 0.0
    boot_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """Trials, and options to try with them: every combination is a scenario."""

    trials: Sequence[Forecast]
    """What each takes alone, in the given order."""
    gpus: int = 1
    """GPUs of each trial."""
    places: tuple[Place, ...] = (Place(),)
    nodes: tuple[int, ...] = ()
    """Numbers of nodes; empty: those of the place."""
    spots: tuple[float, ...] = (0.0,)
    """Shares of nodes that are spot instances."""
    packs: tuple[int, ...] = (1,)
    orders: tuple[str, ...] = ("longest",)
    walltimes_s: tuple[float, ...] = (math.inf,)
    beside: tuple[Nodes, ...] = ()
    """Other machines in every scenario."""
    interruptions_per_hour: float = 0.0
    """Interruptions of one spot instance."""
    slow_down: float = 0.0
    """This and the next two as in `Scenario`."""
    checkpoint_s: float = 600.0
    restart_s: float = 0.0


class WhatIfFigure(Record):
    """A figure and its 80 % interval."""

    mean: float
    low: float
    high: float


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
    makespan_s: WhatIfFigure
    usd: WhatIfFigure | None
    """US dollars; null if a price is unknown."""
    node_hours: WhatIfFigure
    utilisation: WhatIfFigure
    waste: WhatIfFigure
    interruptions: WhatIfFigure
    is_fastest: bool = False
    is_cheapest: bool = False


def answer(question: Question, repeats: int = 20, seed: int = 0) -> tuple[WhatIfRow, ...]:
    """Simulate every scenario, and mark the fastest and the cheapest.

    Raises:
        UserError: There are too many, or one can never end.
    """
    unknown = [each for each in question.orders if each not in get_args(Order)]
    if unknown or any(not 0 <= spot <= 1 for spot in question.spots):
        raise UserError(
            f"Orders are {', '.join(question.orders)}, shares of spot instances "
            f"{', '.join(map(str, question.spots))}",
            f"Valid orders: {', '.join(get_args(Order))}; shares are from 0 to 1.",
        )
    axes = (
        question.places, question.nodes or (0,), question.spots, question.packs, question.orders,
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
    values: tuple[Place, int, float, int, str, float],
    repeats: int,
    seed: int,
) -> WhatIfRow:
    place, count, spot, pack, order, walltime_s = values
    count = count or place.nodes
    kinds = tuple(_kinds(question, place, count, spot, walltime_s))
    scenario = Scenario(
        nodes=(*kinds, *question.beside),
        pack=pack,
        order=cast(Order, order),
        slow_down=question.slow_down,
        checkpoint_s=question.checkpoint_s,
        restart_s=question.restart_s,
    )

    def draw(random: np.random.Generator) -> list[SimulatedJob]:
        return [
            SimulatedJob(seconds=float(seconds), gpus=question.gpus)
            for seconds in possible(random, question.trials)[:, 0]
        ]

    is_certain = all(each.spread == each.shared == 0 for each in question.trials) and not any(
        kind.queue_s or kind.interruptions_per_hour for kind in scenario.nodes
    )
    try:
        spans = repeated(draw, scenario, 1 if is_certain else repeats, seed)
    except ValueError as error:
        raise UserError(f"With {count} nodes of {place.gpus} GPUs: {error}") from error
    figures = {
        name: WhatIfFigure(mean=span.mean, low=span.low, high=span.high)
        for name, span in spans.items()
        if name in WhatIfRow.model_fields and name in Outcome.__dataclass_fields__
    }
    prices = (place.usd_per_hour if spot < 1 else 0.0, place.spot_usd_per_hour if spot else 0.0)
    return WhatIfRow(
        site=place.name,
        nodes=count,
        spot=spot,
        pack=pack,
        order=order,
        walltime_s=None if walltime_s == math.inf else walltime_s,
        **{**figures, "usd": None if None in prices else figures["usd"]},
    )


def _kinds(
    question: Question, place: Place, count: int, spot: float, walltime_s: float
) -> Iterator[Nodes]:
    """Yield nodes on demand, and spot instances."""
    num_spot = round(count * spot)
    shares = (
        (count - num_spot, place.usd_per_hour, 0.0),
        (num_spot, place.spot_usd_per_hour, question.interruptions_per_hour),
    )
    for number, price, interruptions in shares:
        if number:
            yield Nodes(
                count=number,
                gpus=place.gpus,
                usd_per_hour=price or 0.0,
                interruptions_per_hour=interruptions,
                queue_s=place.queue_s,
                boot_s=place.boot_s,
                walltime_s=walltime_s,
            )
