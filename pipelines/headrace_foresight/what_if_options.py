"""Options of what-if, and the meaning of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.cli import arguments
from headrace.errors import UserError
from headrace.runs.prediction import Forecast

if TYPE_CHECKING:
    from headrace_foresight.scenario import Nodes

Value = TypeVar("Value", int, float)

_ANY_ORDER = 0
"""Seed of the order of durations, if only bounds are given."""

Work = Annotated[
    str | None,
    typer.Argument(
        help="Id of a run or suite, a recipe, or a CSV file of durations.",
        autocompletion=arguments.runs,
    ),
]
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes to the recipe, as in trainer.max_epochs=3.")
]
Lasting = Annotated[
    str,
    typer.Option("--duration", help="Durations instead of WORK: 30min, or bounds 1h:10d16h."),
]
Trials = Annotated[int, typer.Option(min=0, max=100_000, help="How many; 0: as many as WORK has.")]
Total = Annotated[str, typer.Option(help="With bounds: the total of all durations.")]
Sites = Annotated[
    list[str] | None,
    typer.Option(
        help="Site whose nodes count; several are compared.", autocompletion=arguments.sites
    ),
]
NumNodes = Annotated[str, typer.Option(help="Numbers of nodes, as 10,20,60; default: the site's.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of a node; default: the site's.")]
Also = Annotated[
    str,
    typer.Option(help="Further nodes: 1x8 with 8 GPUs; 1x8@2.5 for $2.50 an hour; aws=60x1@0.75."),
]
Policies = Annotated[
    str, typer.Option(help="Use all sites at once: own-first, cheapest, spread; several compared.")
]
Deadline = Annotated[str, typer.Option(help="With --policy: time until all trials should end.")]
Budget = Annotated[float, typer.Option(help="With --policy: most US dollars.")]
Spot = Annotated[str, typer.Option(help="Shares of spot instances, as 0,0.5,1.")]
Interruptions = Annotated[
    float | None, typer.Option(min=0, help="Of a spot instance per hour; default: 1 in 5 a month.")
]
Pack = Annotated[str, typer.Option(help="Trials at once on one GPU, as 1,2,4.")]
SlowDown = Annotated[
    float, typer.Option(min=0, help="Share by which each further trial on a GPU slows all.")
]
Orders = Annotated[str, typer.Option(help="Which begin first: longest, given, shortest.")]
Walltimes = Annotated[str, typer.Option(help="Time limits of a node, as 4h,1d; default: none.")]
Usd = Annotated[
    float | None, typer.Option(min=0, help="US dollars per node hour; default: the site's.")
]
SpotUsd = Annotated[float | None, typer.Option(min=0, help="The same for a spot instance.")]
Queue = Annotated[str, typer.Option(help="Mean wait for a node; default: as on the site.")]
Boot = Annotated[str, typer.Option(help="From then to its first trial; default: as on the site.")]
Checkpoint = Annotated[str, typer.Option(help="Time between two checkpoints.")]
Restart = Annotated[str, typer.Option(help="Start of a trial, each time it begins.")]
Repeats = Annotated[int, typer.Option(min=1, max=10_000, help="Simulations of each scenario.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")]


def seconds(text: str) -> float | None:
    """Return the seconds of a duration; None for an empty text."""
    from headrace_foresight.durations import duration_of

    return duration_of(text) if text else None


def trials_of(
    work: str | None, overrides: Sequence[str], count: int, site: str
) -> tuple[Sequence[Forecast], str]:
    """Return the trials of a run, suite, recipe or file, and the source of their durations.

    A count other than 0 repeats a single trial.
    """
    from headrace_foresight.work_ahead import work_of

    if work is None:
        raise UserError(
            "The trials' durations are missing",
            "Name a run, a suite, a recipe or a CSV file, or write --duration 1h:10h --trials 100.",
        )
    trials, source = work_of(work, overrides, site)
    if not count or count == len(trials):
        return trials, source
    if len(trials) > 1:
        raise UserError(f"--trials is {count}, but {work} has {len(trials)}", "Remove --trials.")
    return [*trials] * count, f"{count} times {source}"


def lasting_so_long(
    work: str | None, duration: str, count: int, total: str
) -> tuple[Sequence[Forecast], str]:
    """Return trials of one duration, or of two bounds with a colon, and the words for it.

    Their total may be empty: unknown. Raises `UserError` if they are also given by `work`.
    """
    import numpy as np

    from headrace_foresight.durations import duration_of, filling

    if work is not None:
        raise UserError(
            f"Durations are given twice: by '{work}' and by --duration", "Remove one of them."
        )
    low, _, high = duration.partition(":")
    if not high:
        count = count or 1
        return [Forecast(seconds=duration_of(low))] * count, f"{count} trials of {low}"
    found = filling(duration_of(low), duration_of(high), count, seconds(total))
    mixed = np.random.default_rng(_ANY_ORDER).permutation(found)
    source = f"{count} trials of {low} to {high}, log-normal between these, in any order"
    return [Forecast(seconds=float(each)) for each in mixed], source


def places(sites: Sequence[str], **asked: Any) -> Iterator[Nodes]:
    """Yield nodes of sites, or of no site, with given values in place of their own.

    Raises:
        UserError: A site is named twice.
    """
    from headrace_foresight.what_if import NO_SITE
    from headrace_foresight.work_ahead import nodes_of

    changes = {name: value for name, value in asked.items() if value is not None}
    found = set[str]()
    for nodes in map(nodes_of, sites) if sites else (NO_SITE,):
        if nodes.site in found:
            raise UserError(f"--site is '{nodes.site}', which is named twice", "Name it once.")
        found.add(nodes.site)
        yield replace(nodes, **changes)


def numbers(option: str, text: str, kind: Callable[[str], Value], least: Value) -> list[Value]:
    """Return the comma-separated numbers of an option."""
    try:
        found = [kind(each) for each in text.split(",") if each]
    except ValueError:
        found = [least - 1]
    if any(each < least for each in found):
        raise UserError(f"--{option} is '{text}'", "Write numbers with commas, such as 1,2,4.")
    return found


def beside(text: str) -> Iterator[Nodes]:
    """Yield nodes that every scenario has, as in `1x8@2.5`."""
    from headrace_foresight.scenario import Nodes

    for each in filter(None, text.split(",")):
        match = re.fullmatch(
            r"(?:([\w-]{1,60})=)?(\d{1,6})x(\d{1,4})(?:@(\d{1,9}(?:\.\d{1,9})?))?", each
        )
        if match is None:
            raise UserError(f"--also is '{text}'", "Write nodes x GPUs @ $ an hour: 1x8 or 2x4@3.5")
        name, count, gpus, usd = match.groups()
        yield Nodes(
            site=name or "",
            count=int(count),
            gpus=int(gpus),
            usd_per_hour=float(usd or 0),
            is_own=not usd,
        )
