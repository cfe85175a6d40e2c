"""How quick sites are, and how long they take to begin: from earlier work there, and this suite."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import HeadraceError
from headrace.recipe.load import load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.runs.prediction import Forecast
from headrace.suites.suite_state import SuiteState
from headrace_foresight.forecast import durations
from headrace_foresight.past_attempts import SUITE, earlier, past_of, starts_of
from headrace_foresight.trial_forecast import SITE, known_of
from headrace_foresight.work_ahead import forecasts_at

_NUM_STARTS = 5
_EARLIER = 3
"""Number of trials of this suite that earlier work of a site counts as."""


def speeds_of(
    recipe: Recipe, site_names: Sequence[str], suite_state: SuiteState | None = None
) -> dict[str, float]:
    """Return the speeds of sites relative to the first; 1 if neither has run the recipe."""
    known = known_of(suite_state.rows.values()) if suite_state is not None else []
    counts = Counter(str(features.get(SITE, "")) for features, _ in known)
    logs = _earlier(recipe, site_names)
    here = [name for name in site_names if counts[name]]
    if len(here) > 1 or (here and here[0] in logs and len(logs) > 1):
        like = known[-1][0]
        found = durations(known, [{**like, SITE: name} for name in here])
        now = {name: -math.log(each.seconds) for name, each in zip(here, found, strict=True)}
        shift = statistics.fmean(logs.get(name, 0.0) - each for name, each in now.items())
        for name, each in now.items():
            weight = counts[name] / (counts[name] + (_EARLIER if name in logs else 0))
            logs[name] = weight * (each + shift) + (1 - weight) * logs.get(name, 0.0)
    first = logs.get(site_names[0], 0.0) if site_names else 0.0
    return {name: math.exp(logs[name] - first) if name in logs else 1.0 for name in site_names}


def _earlier(recipe: Recipe, site_names: Iterable[str]) -> dict[str, float]:
    """Return logarithms of the speeds of sites with earlier work, relative to the first."""
    known: dict[str, Sequence[Forecast]] = {}
    for name in site_names:
        try:
            site = load_site(name)
            trials, _ = forecasts_at(recipe, site, past_of(recipe, site, "part"))
        except HeadraceError:
            continue
        if trials:
            known[name] = trials
    return {name: math.log(each) for name, each in relative(known, list(known)).items()}


def relative(known: Mapping[str, Sequence[Forecast]], names: Sequence[str]) -> dict[str, float]:
    """Return the speeds of sites by what the same trials take there; 1 if unknown.

    They are relative to the first known one of the names.
    """
    means = {
        name: statistics.fmean(math.log(each.seconds) for each in known[name])
        for name in names
        if name in known
    }
    first = next(iter(means.values()), 0.0)
    return {name: math.exp(first - means.get(name, first)) for name in names}


def start_of(recipe: Recipe, site: Site, role_name: str) -> float | None:
    """Return the seconds from a request for nodes to work on them, in newest leases; None: unknown.

    It is the median time until leases were ready, and until pools had their first node.
    """
    starts = starts_of(site.name, role_name)[:_NUM_STARTS]
    queued = [one.queue_s for one in earlier(recipe, site, role_name) if one.kind == SUITE]
    if not starts:
        return None
    return statistics.median(starts) + statistics.median(queued[-_NUM_STARTS:] or [0.0])
