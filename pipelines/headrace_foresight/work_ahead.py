"""Trials of which the time is asked: of a file, a suite, a run, or a recipe and what is known."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from headrace.batch.meter import Price
from headrace.batch.registry import meter_of
from headrace.errors import UnknownNameError, UserError
from headrace.ledger.ledger import open_ledger
from headrace.recipe.gang_size import gang_size
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.suite import SuiteSpec
from headrace.runs.runs import Run, open_run
from headrace.runs.site_machines import site_offers
from headrace.suites import points
from headrace.suites.records import ENTRY, Point
from headrace.suites.suite_state import Board
from headrace.suites.trial_order import Eta
from headrace_foresight.durations import read_durations
from headrace_foresight.forecast import (
    Features,
    Forecast,
    durations,
    eta,
    features_of,
    features_of_point,
)
from headrace_foresight.lifetime import starts_of
from headrace_foresight.past_attempts import (
    SUITE,
    PastAttempt,
    earlier,
    has_ledger,
    is_alike,
    preferred,
)
from headrace_foresight.trial_forecast import around_s, forecasts_of, known_of
from headrace_foresight.what_if import Place

_DRIFT = 0.15
"""Spread of what machines are slower or faster by from one suite to the next: known trials are of
few suites, and do not tell it. An assumption."""


@dataclass(frozen=True, kw_only=True)
class WorkAhead:
    """Trials, and where their durations are from."""

    trials: Sequence[Forecast]
    told: str
    """That, for the user."""


def work_of(word: str, overrides: Sequence[str], site_name: str) -> WorkAhead:
    """The trials that a word means: a CSV file, the id of a run or a suite, a recipe.

    Raises:
        UserError: It is none of these, or no earlier run tells how long they take.
    """
    if word.endswith(".csv"):
        seconds = read_durations(Path(word))
        told = f"{len(seconds)} durations of {word}"
        return WorkAhead(trials=[Forecast(seconds=each) for each in seconds], told=told)
    run = _run(word)
    if run is None:
        return _of_recipe(load_recipe(word, overrides), load_site(site_name))
    if run.folder.journal.exists():
        return _of_suite(run)
    return _of_recipe(run.recipe, run.site)


def suite_ahead(recipe: Recipe, site: Site) -> tuple[Eta | None, int]:
    """What the trials of a recipe's suite take together, and how many known durations tell it."""
    known = _known_trials(recipe, site)
    places = places_of(recipe, site.roles[recipe.train.role])
    trials = _forecasts(recipe, site, known)
    if recipe.suite is not None and recipe.suite.order == "longest":
        trials.sort(key=lambda each: -each.seconds)
    if not trials:
        return None, 0
    found = eta(trials, places)
    return replace(found, seconds=found.seconds + _around_s(recipe, site)), len(known)


def _around_s(recipe: Recipe, site: Site) -> float:
    """Seconds of a suite before its first trial and after its last: the mean of those that were."""
    spent = [
        around_s(board_of(open_run(one.run_id)), one.seconds)
        for one in _suites(earlier(recipe, site, recipe.train.role), recipe)
        if one.succeeded and one.attempts == 1
    ]
    return statistics.fmean(spent) if spent else 0.0


def _suites(taken: Sequence[PastAttempt], recipe: Recipe) -> Sequence[PastAttempt]:
    """Suites of like trials: those that have succeeded, if there are such."""
    alike = [one for one in taken if one.kind == SUITE and is_alike("train", one.recipe, recipe)]
    return preferred(alike, lambda one: one.succeeded)


def places_of(recipe: Recipe, role: Role) -> int:
    """Trials that a role has room for at once, as far as can be told before its nodes are there."""
    suite, ranks = recipe.suite or SuiteSpec(), recipe.train.ranks_per_node or 1
    shared = suite.trials_per_gpu if isinstance(suite.trials_per_gpu, int) else 1
    if role.batch.gpus_per_node:
        each = role.batch.gpus_per_node * shared // ranks
    else:
        cpus = len(os.sched_getaffinity(0)) if role.is_here else role.cpus_per_node
        each = suite.trials_per_node or cpus // (ranks * role.threads_per_rank)
    nodes = role.nodes // (recipe.train.nodes or 1)
    return max(min(nodes * max(each, 1), suite.max_running or nodes * max(each, 1)), 1)


def _forecasts(
    recipe: Recipe, site: Site, known: Sequence[tuple[Features, float]]
) -> list[Forecast]:
    nodes, ranks = gang_size(recipe, site.roles[recipe.train.role])
    is_suite = recipe.suite is not None
    base = features_of(recipe, _ranks_of_trial(recipe) if is_suite else nodes * ranks)
    trials = list(_points(recipe)) if is_suite else [{}]
    found = durations(known, [{**base, **features_of_point(each)} for each in trials])
    drift = _DRIFT if is_suite else 0.0
    return [replace(each, shared=math.hypot(each.shared, drift)) for each in found]


def _run(word: str) -> Run | None:
    if not has_ledger():
        return None
    try:
        open_ledger().run(word)
    except UnknownNameError:
        return None
    return open_run(word)


def board_of(run: Run) -> Board:
    """How the trials of a suite stand, as far as its journal is written."""
    board = Board()
    lines = run.folder.journal.read_bytes().split(b"\n") if run.folder.journal.exists() else []
    for line in lines:
        with suppress(ValidationError):  # it is damaged, or still being written
            board.take(ENTRY.validate_json(line))
    return board


def _of_suite(run: Run) -> WorkAhead:
    """Trials of a suite that is there: those that have ended took what they took."""
    taken, left = forecasts_of(board_of(run))
    if not taken:
        raise _unknown(f"No trial of {run.run_id} has ended")
    told = f"{len(taken)} trials of {run.run_id} as they were"
    if left:
        told += f", {len(left)} forecast from them"
    return WorkAhead(trials=[*taken, *left], told=told)


def _of_recipe(recipe: Recipe, site: Site) -> WorkAhead:
    """The trials of a recipe's suite, or one training with its evaluation, by what others took."""
    known = _known_trials(recipe, site)
    found = _forecasts(recipe, site, known)
    if not found:
        raise _unknown(f"No earlier run tells how long {recipe.name} takes on {site.name}")
    count = "1 earlier run or trial" if len(known) == 1 else f"{len(known)} earlier runs or trials"
    what = f"{len(found)} trials of {recipe.name}" if recipe.suite else recipe.name
    return WorkAhead(trials=found, told=f"{what}, by {count} on {site.name}")


def _points(recipe: Recipe) -> Iterator[Point]:
    """What is different in each trial; what a sampler will propose is not known."""
    if recipe.suite is not None and recipe.suite.search is not None:
        yield from ({} for _ in range(points.count(recipe)))
    yield from (trial.values for trial in points.expand(recipe))


def _known_trials(recipe: Recipe, site: Site) -> list[tuple[Features, float]]:
    """What trials of suites took; without any, trainings with their evaluation. The newest last.

    A trial does not wait for a process to start, and shares its node.
    """
    taken = earlier(recipe, site, recipe.train.role)
    known: list[tuple[Features, float]] = []
    for one in _suites(taken, recipe):
        suite = open_run(one.run_id)
        base = features_of(suite.recipe, _ranks_of_trial(suite.recipe))
        told = known_of(board_of(suite).rows.values())
        known += [({**base, **features}, seconds) for features, seconds in told]
    if known and recipe.suite is not None:
        return known
    by_run: dict[str, list[PastAttempt]] = {}
    for one in taken:
        by_run.setdefault(one.run_id, []).append(one)
    wanted = {"train"} if recipe.evaluate is None else {"train", "evaluate"}
    for mine in by_run.values():
        parts = [one for kind in sorted(wanted) for one in mine if one.kind == kind]
        if {one.kind for one in parts} == wanted and is_alike("train", parts[0].recipe, recipe):
            features = features_of(parts[0].recipe, parts[0].ranks)
            known.append((features, sum(one.seconds for one in parts)))
    return known


def _ranks_of_trial(recipe: Recipe) -> int:
    """Ranks of a trial: one, unless its recipe says more."""
    return (recipe.train.nodes or 1) * (recipe.train.ranks_per_node or 1)


def _unknown(what: str) -> UserError:
    return UserError(
        what,
        "Run it for a few epochs, or say how long trials take: --duration 1h:10h --trials 100.",
    )


def place_of(site_name: str, role_name: str = "gpu") -> Place:
    """What the nodes of a site's role are like, and how long earlier ones took to come.

    Side effects: asks who knows the prices of its machines, where these cost something.
    """
    site = load_site(site_name)
    role = site.roles.get(role_name) or next(iter(site.roles.values()))
    meter = meter_of(role)
    offers = site_offers(role) if meter is None else meter.offers()
    starts = starts_of(site.name, role_name) if has_ledger() else []
    wait_s = statistics.median(starts) if starts else 0.0
    has_queue = role.has_queue
    return Place(
        name=site.name,
        nodes=role.nodes,
        gpus=role.ranks_per_node,
        usd_per_hour=_dearest(offers, is_spot=False),
        spot_usd_per_hour=_dearest(offers, is_spot=True),
        queue_s=wait_s if has_queue else 0.0,
        boot_s=0.0 if has_queue else wait_s,
    )


def _dearest(offers: Mapping[str, Price | None], *, is_spot: bool) -> float | None:
    prices = [price for name, price in offers.items() if name.endswith("(spot)") == is_spot]
    known = [price.usd_per_hour for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None
