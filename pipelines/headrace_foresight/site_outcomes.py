"""What a suite over several sites expected of each at its start, and what came."""

from __future__ import annotations

import math

from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.recipe.recipe import Recipe
from headrace.record import Record
from headrace.runs.prediction import Frontier
from headrace.suites.records import Added, Assigned, Ended, Started, SuiteSummary, entries_in


class ExpectedAndCome(Record):
    """A figure of a site; null: unknown."""

    expected: float | None = None
    came: float | None = None


class SiteOutcome(Record):
    """A site of a suite over several."""

    site: str
    usd: ExpectedAndCome
    """US dollars."""
    ends_s: ExpectedAndCome
    """Seconds from the suite's start to the end of its last trial there."""
    start_s: ExpectedAndCome
    """Seconds from the first trial's assignment until it began: queue, boot, copies."""
    speed: ExpectedAndCome
    """Speed relative to the first site."""


def site_outcomes(folder: RunFolder, recipe: Recipe) -> tuple[SiteOutcome, ...]:
    """Return the sites of a suite in their order; empty if it has only one."""
    summary = read_record(folder.summary, SuiteSummary)
    if summary is None or not summary.sites:
        return ()
    frontier = read_record(folder.frontier, Frontier) or Frontier(points=())
    asked = (recipe.suite.policy, recipe.suite.deadline) if recipe.suite is not None else None
    by_policy = {(each.policy, each.deadline_s): each for each in reversed(frontier.points)}
    point = by_policy.get(asked) if asked is not None else None
    expected = {each.site: each for each in frontier.sites}
    began, first, ended = math.inf, dict[tuple[str, str], float](), dict[str, float]()
    for entry in entries_in(folder.journal):
        if isinstance(entry, Added):
            began = min(began, entry.at)
        elif isinstance(entry, Assigned | Started):
            first.setdefault((entry.event, entry.site), entry.at)
        elif isinstance(entry, Ended):
            ended[entry.site] = max(ended.get(entry.site, -math.inf), entry.finished_at)
    found = []
    for each in summary.sites:
        name, before = each.site, expected.get(each.site)
        is_priced = before is not None and before.usd_per_hour is not None
        ends_s = ended.get(name, math.inf) - began
        start_s = first.get(("started", name), math.inf) - first.get(("assigned", name), math.nan)
        found.append(
            SiteOutcome(
                site=name,
                usd=_pair(point.usd_of.get(name) if point and is_priced else None, each.usd),
                ends_s=_pair(point.ends_of.get(name) if point else None, ends_s),
                start_s=_pair(before.start_s if before else None, start_s),
                speed=_pair(before.speed if before else None, each.speed if each.ended else None),
            )
        )
    return tuple(found)


def _pair(expected: float | None, came: float | None) -> ExpectedAndCome:
    is_known = came is not None and math.isfinite(came)
    return ExpectedAndCome(expected=expected, came=came if is_known else None)
