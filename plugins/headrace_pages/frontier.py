"""The picture of a suite over several sites: dollars against the time to its end, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.runs.prediction import Frontier, FrontierPoint
from headrace.status.suite import SuitePage, SuiteView, suite_page

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 400, 240, 44, 388, 30, 200
_TICKS = 4
_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


class SuiteWithPicture(SuitePage):
    """All data of a suite's page, with its picture."""

    picture: str = ""
    """SVG in colours of the pages' style; empty without forecasts of several sites."""


def suite_with_picture(run_id: str, *, can_act: bool) -> SuiteWithPicture:
    """Return `suite_page` with the picture."""
    page = suite_page(run_id, can_act=can_act)
    try:
        found = read_record(RunFolder(Path(page.folder)).frontier, Frontier)
    except (StepError, OSError):  # the suite is shown without its forecasts
        found = None
    return SuiteWithPicture(**dict(page), picture=svg(found, page) if found else "")


@dataclass(frozen=True)
class _Axes:
    """Time and US dollars from 0 to the greatest values, as places in the picture."""

    most_s: float
    most_usd: float

    @property
    def unit(self) -> tuple[str, float]:
        return next((each for each in _UNITS if self.most_s >= 2 * each[1]), _UNITS[-1])

    def x(self, seconds: float) -> str:
        return f"{_LEFT + (_RIGHT - _LEFT) * seconds / self.most_s:.1f}"

    def y(self, usd: float) -> str:
        return f"{_BOTTOM - (_BOTTOM - _TOP) * usd / self.most_usd:.1f}"

    def words(self, seconds: float, usd: float) -> str:
        return f"{seconds / self.unit[1]:.2g} {self.unit[0]}, ${usd:,.2f}"

    def frame(self) -> Iterator[str]:
        """Yield the lines and numbers of the grid."""
        for value in _ticks(self.most_s / self.unit[1]):
            x = self.x(value * self.unit[1])
            yield f'<path d="M{x} {_TOP}V{_BOTTOM}" stroke="var(--grid)"/>'
            yield _text(x, _BOTTOM + 16, f"{value:g}", "middle")
        for value in _ticks(self.most_usd):
            y = self.y(value)
            yield f'<path d="M{_LEFT} {y}H{_RIGHT}" stroke="var(--grid)"/>'
            yield _text(_LEFT - 6, y, f"${value:g}", "end")
        yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 6, f"{self.unit[0]} to the end", "middle")

    def policy(self, nth: int, points: list[FrontierPoint]) -> str:
        """Return the points of a policy, their intervals, a line through them and their name."""
        places = " ".join(f"{self.x(p.makespan_s.mean)},{self.y(p.usd.mean)}" for p in points)
        name, left, colour = escape(points[0].policy), _LEFT + 90 * nth, f"var(--series-{nth})"
        return (
            f'<g fill="{colour}" stroke="{colour}"><polyline points="{places}" fill="none"/>'
            f'{"".join(map(self._point, points))}<circle r="4" cx="{left}" cy="12"/></g>'
            f"{_text(left + 8, 16, name)}"
        )

    def _point(self, each: FrontierPoint) -> str:
        end, usd = each.makespan_s, each.usd
        x, y = self.x(end.mean), self.y(usd.mean)
        low, high = self.words(end.low, usd.low), self.words(end.high, usd.high)
        title = f"{escape(each.policy)}: {self.words(end.mean, usd.mean)} ({low} to {high})"
        cross = (
            f"M{self.x(end.low)} {y}H{self.x(end.high)}M{x} {self.y(usd.low)}V{self.y(usd.high)}"
        )
        shape = f'<circle r="4" cx="{x}" cy="{y}"/><path d="{cross}"/>'
        return f"<g><title>{title}</title>{shape}</g>"


def svg(frontier: Frontier, suite: SuiteView) -> str:
    """Return the forecasts by policy, and the end expected now, as SVG; empty without any."""
    points = sorted(frontier.points, key=lambda each: (each.policy, each.makespan_s.mean))
    if not points:
        return ""
    now = _expected(suite)
    ends_s = [*(each.makespan_s.high for each in points), *(at for at, _ in now)]
    costs = [*(each.usd.high for each in points), *(usd for _, usd in now)]
    axes = _Axes(max(ends_s) * 1.05 or 1.0, max(costs) * 1.05 or 1.0)
    groups = groupby(points, lambda each: each.policy)
    parts = [*axes.frame(), *(axes.policy(nth, [*of]) for nth, (_, of) in enumerate(groups))]
    for at, usd in now:
        ring = f'r="7" cx="{axes.x(at)}" cy="{axes.y(usd)}" fill="none" stroke="var(--text)"'
        parts.append(f"<circle {ring}><title>expected now: {axes.words(at, usd)}</title></circle>")
    label = "US dollars against the time to the end, by policy"
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def _text(x: float | str, y: float | str, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="var(--muted)">{words}</text>'


def _expected(suite: SuiteView) -> list[tuple[float, float]]:
    """Return seconds to the end and US dollars as the sites expect them now, if known."""
    costs = [each.expected_usd for each in suite.sites if each.expected_usd is not None]
    return [] if suite.eta_s is None or not costs else [(suite.elapsed_s + suite.eta_s, sum(costs))]


def _ticks(most: float) -> Iterator[float]:
    """Yield about `_TICKS` round numbers from 0 up to the most."""
    size = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(size * each for each in (1, 2, 5, 10) if most / (size * each) <= _TICKS + 1)
    yield from (round(nth * step, 9) for nth in range(int(most / step) + 1))
