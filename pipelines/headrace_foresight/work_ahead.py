"""Trials whose time is wanted: of a file, a suite, a run, or a recipe with its earlier runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.batch.meter import Price, meter_of
from headrace.errors import UnknownNameError, UserError
from headrace.ledger.ledger import open_ledger
from headrace.recipe.gang_size import gang_size
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.runs.prediction import Forecast
from headrace.runs.runs import Run, open_run
from headrace.runs.site_machines import site_offers
from headrace.suites import points
from headrace.suites.nodes import slots_of
from headrace.suites.records import Point
from headrace.suites.trial_order import Eta
from headrace_foresight.durations import read_durations
from headrace_foresight.forecast import (
    durations,
    eta,
    features_of,
    features_of_point,
    together,
)
from headrace_foresight.past_attempts import (
    PastAttempt,
    alike_of,
    has_ledger,
    past_of,
    ranks_of_trial,
    starts_of,
    suite_state_of,
    suites_of,
    usual,
)
from headrace_foresight.pruning import pruner_of, rule_shares
from headrace_foresight.scenario import Nodes
from headrace_foresight.training_time import training_s
from headrace_foresight.trial_forecast import around_s, forecasts_of, known_of, shares_of

_DRIFT = 0.15
"""Spread of the machines' speed from one suite to the next: known trials belong to few suites, so
they do not show it. An assumption."""


class WorkAhead(NamedTuple):
    """Trials, and the source of their durations."""

    trials: Sequence[Forecast]
    source: str
    """For the user."""


def work_of(word: str, overrides: Sequence[str], site_name: str) -> WorkAhead:
    """Return the trials by a CSV file, the id of a run or a suite, or a recipe.

    Raises:
        UserError: It is none of these, or no earlier run shows how long they take.
    """
    if word.endswith(".csv"):
        seconds = read_durations(Path(word))
        source = f"{len(seconds)} durations of {word}"
        return WorkAhead(trials=[Forecast(seconds=each) for each in seconds], source=source)
    run = _run(word)
    if run is None:
        return _of_recipe(load_recipe(word, overrides), load_site(site_name))
    if run.folder.journal.exists():
        return _of_suite(run)
    return _of_recipe(run.recipe, run.site)


def suite_ahead(recipe: Recipe, site: Site, taken: Sequence[PastAttempt]) -> tuple[Eta | None, int]:
    """Return what the trials of a recipe's suite take together, and the number of known ones."""
    trials, num_known = forecasts_at(recipe, site, taken)
    if recipe.suite is not None and recipe.suite.order == "longest":
        trials.sort(key=lambda each: -each.seconds)
    if not trials:
        return None, 0
    found = eta(trials, places_of(recipe, site.roles[recipe.train.role]))
    return Eta(seconds=found.seconds + _around_s(recipe, taken), half_s=found.half_s), num_known


def _around_s(recipe: Recipe, taken: Sequence[PastAttempt]) -> float:
    """Return a suite's seconds before its first and after its last trial: the mean of earlier ones.

    Without an earlier suite, its processes start as those of a run do.
    """
    spent = [
        around_s(suite_state_of(open_run(one.run_id).folder), one.seconds)
        for one in suites_of(taken, recipe)
        if one.succeeded and one.attempts == 1
    ]
    runs = [one for one in alike_of("train", recipe, taken) if one.steps.in_loop]
    starts = [one.start_s for one in runs if not one.is_trial]
    return statistics.fmean(spent or starts or [0.0])


def places_of(recipe: Recipe, role: Role) -> int:
    """Return how many trials of a suite may run at once on a role, as far as known."""
    slots = slots_of(recipe, role)
    most = recipe.suite.max_running if recipe.suite else None
    return min(slots, most or slots)


def forecasts_at(
    recipe: Recipe, site: Site, taken: Sequence[PastAttempt]
) -> tuple[list[Forecast], int]:
    """Return forecasts of the trials of a suite, or of one training, with evaluations."""
    nodes, ranks = gang_size(recipe, site.roles[recipe.train.role])
    is_suite = recipe.suite is not None
    base = features_of(recipe, ranks_of_trial(recipe) if is_suite else nodes * ranks)
    wanted = [
        {**base, **features_of_point(each)} for each in (_points(recipe) if is_suite else [{}])
    ]
    found, known_by = training_s(recipe, wanted, taken, of_trials=is_suite)
    if recipe.evaluate is not None:
        known = usual(alike_of("evaluate", recipe, taken), taken)
        known = [one for one in known if known_by and one.is_trial == known_by[-1].is_trial]
        evaluated = durations([({}, one.seconds) for one in known], [{}])
        found = [together([each, *evaluated]) for each in found]
    drift = _DRIFT if is_suite else 0.0
    shares = _shares(recipe, site, taken) if is_suite else ()
    wide = ({"shared": math.hypot(one.shared, drift), "shares": shares} for one in found)
    trials = [one.model_copy(update=more) for one, more in zip(found, wide, strict=True)]
    return trials, len(known_by)


def _shares(recipe: Recipe, site: Site, taken: Sequence[PastAttempt]) -> tuple[float, ...]:
    """Return shares after which trials end: as in suites with the same pruner, or by its rule."""
    shares: list[float] = []
    for one in suites_of(taken, recipe):
        if pruner_of(one.recipe) == pruner_of(recipe):
            rows = suite_state_of(open_run(one.run_id).folder).rows.values()
            shares += shares_of(rows, known_of(rows))
    return tuple(shares) or rule_shares(recipe, places_of(recipe, site.roles[recipe.train.role]))


def _run(word: str) -> Run | None:
    if not has_ledger():
        return None
    try:
        open_ledger().run(word)
    except UnknownNameError:
        return None
    return open_run(word)


def _of_suite(run: Run) -> WorkAhead:
    """Return the trials of an existing suite; ended ones with what they took."""
    taken, left = forecasts_of(suite_state_of(run.folder))
    if not taken:
        raise unknown(f"No trial of {run.run_id} has ended")
    source = f"{len(taken)} trials of {run.run_id} as they were"
    if left:
        source += f", {len(left)} forecast from them"
    return WorkAhead(trials=[*taken, *left], source=source)


def _of_recipe(recipe: Recipe, site: Site) -> WorkAhead:
    """Return a recipe's trials, or one training with its evaluation, by earlier ones."""
    kind = "suite" if recipe.suite else "train"
    found, num_known = forecasts_at(recipe, site, past_of(recipe, site, kind))
    if not found:
        raise unknown(f"No earlier run shows how long {recipe.name} takes on {site.name}")
    count = "1 earlier run or trial" if num_known == 1 else f"{num_known} earlier runs or trials"
    what = f"{len(found)} trials of {recipe.name}" if recipe.suite else recipe.name
    return WorkAhead(trials=found, source=f"{what}, by {count} on {site.name}")


def _points(recipe: Recipe) -> Iterator[Point]:
    """Yield what differs in each trial; a sampler's points are unknown."""
    if recipe.suite is not None and recipe.suite.search is not None:
        yield from ({} for _ in range(points.count(recipe)))
    yield from (trial.values for trial in points.expand(recipe))


def unknown(what: str) -> UserError:
    """Return the error that no duration is known."""
    return UserError(
        what,
        "Run it for a few epochs, or give their durations: --duration 1h:10h --trials 100.",
    )


def nodes_of(site_name: str, role_name: str = "gpu") -> Nodes:
    """Return the nodes of a site's role, or its first one, and how long earlier ones took to come.

    Side effects: queries the prices of its machines, if these cost something.
    """
    site = load_site(site_name)
    role_name = role_name if role_name in site.roles else next(iter(site.roles))
    role = site.roles[role_name]
    meter = meter_of(role)
    offers = site_offers(role) if meter is None else meter.offers()
    wait_s = statistics.median(starts_of(site.name, role_name) or [0.0])
    return Nodes(
        site=site.name,
        count=role.nodes,
        gpus=role.ranks_per_node,
        usd_per_hour=_dearest(offers, is_spot=False),
        spot_usd_per_hour=_dearest(offers, is_spot=True),
        queue_s=wait_s if role.has_queue else 0.0,
        boot_s=0.0 if role.has_queue else wait_s,
        is_own=meter is None,
    )


def _dearest(offers: Mapping[str, Price | None], *, is_spot: bool) -> float | None:
    prices = [price for name, price in offers.items() if name.endswith("(spot)") == is_spot]
    known = [price.usd_per_hour for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None
