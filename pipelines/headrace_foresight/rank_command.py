"""The command rank: which site runs a recipe fastest, and which cheapest, as measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.console import JsonOption, duration, hundredths, open_console, tell_json
from headrace.cli.listing import Listing
from headrace.errors import UnknownNameError, UserError, nearest
from headrace.ledger.database import grouped
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.record import Record
from headrace.states import StepState

_MOST_RUNS = 10_000
_TRAINING = ("train", "trial")
_FIGURES = ("runs", "samples/s", "USD a run", "time")


class RankedSite(Record):
    """What runs of one recipe took on a site; null: unknown."""

    site: str
    runs: int
    samples_per_s: float | None
    """Samples trained on per second of training, by the attempts of all runs together."""
    usd: float | None
    """US dollars of a run, mean; null if a price is unknown."""
    seconds: float
    """Time of a run with its waits, median."""
    is_fastest: bool = False
    is_cheapest: bool = False


_ORDERS: dict[str, Callable[[RankedSite], float]] = {
    "samples": lambda each: -(each.samples_per_s or 0.0),
    "usd": lambda each: math.inf if each.usd is None else each.usd,
}


def rank(
    work: Annotated[
        str, typer.Argument(help="A recipe, or the id of a run.", autocompletion=arguments.recipes)
    ],
    site: Annotated[
        list[str] | None,
        typer.Option(help="Only these sites; default: all.", autocompletion=arguments.sites),
    ] = None,
    by: Annotated[str, typer.Option(help="Order: samples or usd.")] = "samples",
    as_json: JsonOption = False,
) -> None:
    """Rank sites by what runs of a recipe took there.

    Runs count that succeeded with the same recipe as the run, or as the recipe's newest one, with
    the same overrides.

    Examples:
        headrace rank digits

        headrace rank digits-20260102-030405-0a1b2c3d --site laptop --site cluster --by usd
    """
    if by not in _ORDERS:
        raise UserError(f"--by is '{by}'", nearest(by, _ORDERS))
    found = sorted(ranked(_alike(work), site), key=_ORDERS[by])
    if as_json:
        tell_json(found)
        return
    listed = Listing("site", *_FIGURES, "", figures=_FIGURES)
    for each in found:
        marks = ("fastest" if each.is_fastest else "", "cheapest" if each.is_cheapest else "")
        rate = "—" if each.samples_per_s is None else f"{each.samples_per_s:,.4g}"
        usd = "—" if each.usd is None else hundredths(each.usd)
        cells = (str(each.runs), rate, usd, duration(each.seconds))
        listed.add(each.site, *cells, ", ".join(filter(None, marks)))
    open_console().print(listed)


def ranked(runs: Sequence[RunRecord], sites: Sequence[str] | None) -> list[RankedSite]:
    """Return what runs took on some sites or all.

    Raises:
        UnknownNameError: One of the sites has none of these runs.
    """
    by_site = grouped((run.site_name, run) for run in runs)
    if unknown := [name for name in sites or () if name not in by_site]:
        what = f"No run with this recipe has succeeded on site '{unknown[0]}'"
        raise UnknownNameError(what, f"Sites with runs: {', '.join(sorted(by_site))}.")
    found = [_of_site(name, by_site[name]) for name in sites or by_site]
    most = max((each.samples_per_s or 0.0 for each in found), default=0.0)
    least = min(map(_ORDERS["usd"], found))
    return [
        each.model_copy(
            update={"is_fastest": each.samples_per_s == most, "is_cheapest": each.usd == least}
        )
        for each in found
    ]


def _alike(work: str) -> list[RunRecord]:
    """Return runs that succeeded with the recipe of a run, or of the newest run of a recipe."""
    every = open_ledger().runs(_MOST_RUNS, (StepState.SUCCEEDED,))
    model = next((run for run in every if work in (run.run_id, run.recipe_name)), None)
    if model is None:
        known = dict.fromkeys(run.recipe_name for run in every)
        raise UnknownNameError(f"No run of '{work}' has succeeded", nearest(work, known))
    same = model.recipe_fingerprint.partition(";")[0]  # then follows that of the site
    return [run for run in every if run.recipe_fingerprint.partition(";")[0] == same]


def _of_site(name: str, runs: Sequence[RunRecord]) -> RankedSite:
    leases = open_ledger().leases_of([run.run_id for run in runs]).values()
    lease_ids = [lease.lease_id for each in leases for lease in each]
    sums = open_ledger().usage_sums("kind", lease_id=lease_ids)
    trained = [each for each in sums if each.name in _TRAINING]
    samples, train_s = sum(each.samples for each in trained), sum(each.train_s for each in trained)
    is_priced = sums and not any(each.unpriced for each in sums)
    return RankedSite(
        site=name,
        runs=len(runs),
        samples_per_s=samples / train_s if samples and train_s else None,
        usd=sum(each.usd or 0.0 for each in sums) / len(runs) if is_priced else None,
        seconds=statistics.median((run.finished_at or 0.0) - run.created_at for run in runs),
    )
