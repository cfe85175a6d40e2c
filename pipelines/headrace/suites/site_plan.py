"""Which sites take which trials of a suite over several sites: a pure function.

The driver calls it each time something has changed, a simulation calls it in simulated time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import chain
from typing import Literal

Policy = Literal["own-first", "cheapest", "spread"]


@dataclass(frozen=True, kw_only=True)
class PlannedSite:
    """A site at one moment; times in seconds from now, prices in US dollars."""

    name: str
    slots: int
    """Most trials at once: by its nodes, its role, and the command `limit-site`; 0: unusable."""
    is_own: bool = True
    """Whether its machines are not rented by the hour."""
    usd_per_hour: float = 0.0
    """Price of a slot; 0 if it is free or unknown."""
    start_s: float = 0.0
    """Time until a further slot can begin a trial: queue, boot, copies."""
    speed: float = 1.0
    """A trial of `seconds` takes `seconds / speed` here."""
    open_slots: int = 0
    """Slots whose nodes are there, free or not."""
    running_s: tuple[float, ...] = ()
    """Expected time left of each running trial."""
    assigned: tuple[int, ...] = ()
    """Trials that wait there, by number, and have not begun."""
    min_paid_s: float = 0.0
    """Least time that is paid for a slot once it opens, with its boot."""


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """A suite over several sites at one moment."""

    sites: tuple[PlannedSite, ...]
    """In the user's order."""
    waiting: tuple[tuple[int, float], ...]
    """Number and expected seconds at speed 1 of each trial that has not begun, also assigned ones,
    in the order in which they should begin."""
    policy: Policy = "own-first"
    left_s: float = math.inf
    """Time until the deadline, may be negative; infinite: none."""
    budget_usd: float = math.inf
    """US dollars that may still be spent; infinite: no limit."""
    ahead_s: float = 10.0
    """A trial is assigned this long before it can begin: handing it over takes about 2 s."""


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """The plan for one site."""

    name: str
    slots: int = 0
    """Trials at once that the site should have; 0: it closes when its trials have ended."""
    ends_s: float = 0.0
    """When its last trial ends; 0: it has none."""
    usd: float = 0.0
    """What it will cost from now on."""
    why: str = ""
    """Why it is used, or is not, in a few words for users."""


@dataclass(frozen=True, kw_only=True)
class SitesPlan:
    """The plan for a suite."""

    sites: tuple[SitePlan, ...]
    assign: tuple[tuple[int, str], ...] = ()
    """Trials to assign now, by number, with the site; in order."""
    withdraw: tuple[tuple[int, str], ...] = ()
    """Assigned trials that should be taken back from their site: it cannot begin them soon enough,
    and another one has a free slot, or the plan does not use it any more."""
    makespan_s: float = 0.0
    """When the last trial ends; infinite: never, as no site is usable or the budget is spent."""
    usd: float = 0.0
    """What all sites will cost from now on."""
    is_late: bool = False
    """Whether the deadline cannot be met within the budget."""


_MOVE_S, _MOVE_SHARE = 15.0, 0.1
"""An assigned trial is taken back if elsewhere it ends earlier by this time and this share of its
wait; by five times as much while no slot is free there."""
_SAFE, _RELEASE = 0.95, 0.9
"""Shares of the time until the deadline: slots are added until the plan ends within the first, and
given up only if it ends within the second without them."""
_NEARLY = 1.02
"""Slots that end a late suite earlier by less than this factor are not used."""
_EXACT = 2000
"""Trials that are planned one by one; more are planned in at most so many lumps of neighbours."""

_Item = tuple[int, float, str]
"""Number of a trial, in a lump the first; seconds at speed 1; the site where it waits, or empty."""


@dataclass(frozen=True)
class _Schedule:
    """Trials on slots; by site, of those that are used."""

    starts: dict[int, tuple[str, float]]
    """Site, if any, and start of each trial; of lumps only their first one."""
    ends_s: dict[str, float]
    """When the last waiting trial ends; only sites that get one."""
    used: dict[str, int]
    """Slots that run a trial, or get one."""
    usd: dict[str, float]
    makespan_s: float


def plan(now: PlanInput) -> SitesPlan:
    """Return which sites open, and which trials are assigned or taken back now.

    Each trial, in order, gets the slot where it ends first. The same input gives the same plan, and
    a plan that was carried out gives no reason for another one.
    """
    work = _Work(now)
    counts = {each.name: work.useful(each) for each in work.base}
    until_s = -math.inf
    if work.more and now.left_s < math.inf:
        added, until_s = work.added(counts)
        counts |= added
    found = work.schedule(counts, until_s, is_final=True)
    assign, withdraw = [], []
    name, start_s = "", 0.0
    for number, seconds, home in work.items:
        name, start_s = found.starts.get(number, (name, start_s))  # of a lump only its first one
        if home and name != home:
            withdraw.append((number, home))
        elif name and not home and work.is_due(work.by_name[name], start_s):
            assign.append((start_s, number, name))
        start_s += seconds / work.by_name[name].speed if name else 0.0
    return SitesPlan(
        sites=tuple(_of_site(each, counts, found, work) for each in now.sites),
        assign=tuple((number, name) for _, number, name in sorted(assign, key=lambda one: one[0])),
        withdraw=tuple(withdraw),
        makespan_s=found.makespan_s,
        usd=sum(found.usd.values()),
        is_late=found.makespan_s > now.left_s,
    )


def _of_site(site: PlannedSite, counts: dict[str, int], found: _Schedule, work: _Work) -> SitePlan:
    """Return a site's part of the plan."""
    name, policy = site.name, work.now.policy
    if site.slots <= 0:
        why = "has no usable slots now"
    elif not counts.get(name):
        limit = "without a deadline" if work.now.left_s == math.inf else "for the deadline"
        why = f"not needed {limit}: {'costs more' if policy == 'cheapest' else 'rented'}"
    elif name in found.ends_s or not work.items:
        why = ""
    elif found.makespan_s == math.inf and site.usd_per_hour:
        why = "the budget is used up"
    else:
        why = "every waiting trial ends earlier elsewhere"
    return SitePlan(
        name=name,
        slots=found.used.get(name, 0),
        ends_s=max([found.ends_s.get(name, 0.0), *work.held_s[name]]),
        usd=found.usd[name],
        why=why,
    )


def _ranked(
    policy: Policy, usable: Sequence[PlannedSite]
) -> tuple[Sequence[PlannedSite], Sequence[PlannedSite]]:
    """Return the sites that are used anyway, and those for a deadline, the cheapest first."""
    if policy == "spread" or not usable:
        return usable, ()
    by_price = sorted(usable, key=_usd_of_work)
    base = [each for each in usable if each.is_own and policy == "own-first"]
    most = _usd_of_work(by_price[0]) * (1 + 1e-9)
    base = base or [each for each in by_price if _usd_of_work(each) <= most]
    return base, [each for each in by_price if each not in base]


def _usd_of_work(site: PlannedSite) -> float:
    return site.usd_per_hour / site.speed


def _num_open(site: PlannedSite) -> int:
    """Return the slots of a site that are open, or open for trials that wait there."""
    return max(site.open_slots, len(site.running_s) + len(site.assigned))


class _Work:
    """The trials of an input, and their schedules on numbers of slots by site."""

    def __init__(self, now: PlanInput) -> None:
        self.now, self.by_name = now, {each.name: each for each in now.sites}
        self.base, self.more = _ranked(now.policy, [each for each in now.sites if each.slots > 0])
        self.ranks = {each.name: rank for rank, each in enumerate(self.more, 1)}
        homes = {number: each.name for each in now.sites for number in each.assigned}
        free = {
            each.name: min(each.open_slots, each.slots) - len(each.running_s) for each in now.sites
        }
        self.held_s = {each.name: list(each.running_s) for each in now.sites}
        """Time left of running trials, and of those that begin at once where they wait."""
        self.items: list[_Item] = []
        stranded: list[_Item] = []
        """Their site may not answer: no slot elsewhere is kept free until it gives them back."""
        for number, seconds in now.waiting:
            home = homes.get(number, "")
            if home and free[home] > 0:
                free[home] -= 1
                self.held_s[home].append(seconds / self.by_name[home].speed)
            elif home and self.by_name[home].slots <= 0:
                stranded.append((number, seconds, home))
            else:
                self.items.append((number, seconds, home))
        self.items += stranded
        self.total_s = sum(seconds for _, seconds, _ in self.items)
        self.lumped = _lumped(self.items, self.total_s)

    def useful(self, site: PlannedSite) -> int:
        """Return a site's slots; of those with a price only as many as work longer than start."""
        if self.now.policy == "spread" or not site.usd_per_hour:
            return site.slots
        start_s = max(site.start_s, site.min_paid_s, 1.0)
        count = math.ceil(self.total_s / site.speed / start_s)
        return min(site.slots, max(count, _num_open(site), 1))

    def is_due(self, site: PlannedSite, start_s: float) -> bool:
        """Whether a trial is assigned now: a slot is free, or soon free, or opens for it."""
        return start_s <= self.now.ahead_s or start_s == site.start_s

    def _stays(self, home: _Lane, best: _Lane, seconds: float) -> bool:
        """Whether a trial stays where it waits, though it would end earlier elsewhere."""
        least_s = _MOVE_S + _MOVE_SHARE * home.free_at[0]
        least_s *= 1 if self.is_due(best.site, best.free_at[0]) else 5
        return home.end_s(seconds) - best.end_s(seconds) <= least_s

    def is_met(self, counts: dict[str, int], until_s: float) -> bool:
        """Whether all trials end until then; the quick answer first."""
        if self._least_s(counts) > until_s:
            return False
        return self.schedule(counts, until_s).makespan_s <= until_s

    def added(self, counts: dict[str, int]) -> tuple[dict[str, int], float]:
        """Return slots of further sites for the deadline, and when the plan with them ends."""
        safe_s, release_s = self.now.left_s * _SAFE, self.now.left_s * _RELEASE
        found = self._fewest(counts, safe_s)
        kept = {each.name: max(_num_open(each), found[each.name]) for each in self.more}
        if kept != found and not self.is_met(counts | found, release_s):
            found = {each.name: min(kept[each.name], each.slots) for each in self.more}
            if self.is_met(counts | found, release_s):
                return found, release_s
        return found, safe_s if self.is_met(counts | found, safe_s) else -math.inf

    def _fewest(self, counts: dict[str, int], until_s: float) -> dict[str, int]:
        """Return the fewest slots of further sites that end until then, or nearly the first."""

        def filled(total: int) -> dict[str, int]:
            found: dict[str, int] = {}
            for site in self.more:
                found[site.name] = min(site.slots, total - sum(found.values()))
            return found

        def is_enough(extra: dict[str, int]) -> bool:
            return self.is_met(counts | extra, until_s)

        most = sum(each.slots for each in self.more)
        total = bisect_left(range(most), True, key=lambda each: is_enough(filled(each)))
        if total == most and not is_enough(filled(most)):  # late: end as soon as can be paid
            totals = [most >> by for by in range(most.bit_length() + 1)]
            ends_s = [self.schedule(counts | filled(each)).makespan_s for each in totals]
            until_s = min(ends_s) * _NEARLY
            return filled(min(each for each, s in zip(totals, ends_s, strict=True) if s <= until_s))
        found = filled(total)
        for site in [each for each in self.more if found[each.name]][:-1]:  # it may be too slow
            found[site.name] = bisect_left(
                range(found[site.name]), True,
                key=lambda each: is_enough(found | {site.name: each}),
            )  # fmt: skip
        return found

    def _least_s(self, counts: dict[str, int]) -> float:
        """Return a time before which slots cannot end, for any order of trials."""
        slots = sorted(
            (free_s, self.by_name[name].speed)
            for name, count in counts.items()
            for free_s in chain(*self._free_at(name, count))
        )
        speed = begun = 0.0
        for free_s, each in slots:
            if speed and (self.total_s + begun) / speed <= free_s:
                break
            speed, begun = speed + each, begun + free_s * each
        return (self.total_s + begun) / speed if speed else math.inf

    def _free_at(self, name: str, count: int) -> tuple[list[float], list[float]]:
        """Return when a number of slots are free: those without a trial now, and the others."""
        site, held = self.by_name[name], sorted(self.held_s[name])
        num_open = max(min(site.open_slots, count) - len(held), 0)
        held = held[max(len(held) - count, 0) :]
        return [0.0] * num_open + [site.start_s] * (count - num_open - len(held)), held

    def schedule(
        self, counts: dict[str, int], until_s: float = -math.inf, *, is_final: bool = False
    ) -> _Schedule:
        """Lay each trial onto the first site where it ends until then; else where it ends first.

        Only if it `is_final`, trials rather stay where they wait. Else it is given up, without an
        end, as soon as a trial ends later.
        """
        lanes = [
            _Lane(self.by_name[name], self.ranks.get(name, 0), *self._free_at(name, count))
            for name, count in counts.items()
            if count > 0
        ]
        quick = [(lane, lane.rank, lane.free_at, lane.pace, lane.usd_per_s) for lane in lanes]
        homes = {lane.site.name: lane for lane in lanes} if is_final else {}
        usd = {each.name: _usd(each, sum(self.held_s[each.name])) for each in self.now.sites}
        left_usd, is_whole = max(self.now.budget_usd - sum(usd.values()), 0.0), True
        starts: dict[int, tuple[str, float]] = {}
        for number, seconds, home in self.lumped:
            best, best_s, best_rank = None, math.inf, 0
            for lane, rank, free_at, pace, usd_per_s in quick:
                if rank > best_rank and best_s <= until_s:
                    break
                end_s = free_at[0] + seconds * pace
                if end_s < best_s and seconds * pace * usd_per_s <= left_usd:
                    best, best_s, best_rank = lane, end_s, rank
            if best_s > until_s > -math.inf and not is_final:
                is_whole = False
                break
            if home in homes and best is not None and self._stays(homes[home], best, seconds):
                best = homes[home]
            if best is not None and best.usd_per_s and best.added_usd(seconds) > left_usd:
                payable = [lane for lane in lanes if lane.added_usd(seconds) <= left_usd]
                best = min(payable, key=lambda lane: lane.end_s(seconds), default=None)
            if best is None:
                starts[number], is_whole = ("", 0.0), False
                continue
            if best.usd_per_s:
                added = best.added_usd(seconds)
                usd[best.site.name] += added
                left_usd -= added
            starts[number] = (best.site.name, best.free_at[0])
            best.last_s = max(best.last_s, best.end_s(seconds))
            heapreplace(best.free_at, best.end_s(seconds))
        held_s = [each for times in self.held_s.values() for each in times]
        ends_s = {lane.site.name: lane.last_s for lane in lanes if lane.last_s}
        return _Schedule(
            starts=starts,
            ends_s=ends_s,
            used={lane.site.name: lane.num_used for lane in lanes},
            usd=usd,
            makespan_s=max([*ends_s.values(), *held_s], default=0.0) if is_whole else math.inf,
        )


class _Lane:
    """The slots of a site while trials are laid onto them."""

    def __init__(self, site: PlannedSite, rank: int, idle: list[float], held: list[float]) -> None:
        self.site, self.rank, self.last_s, self.free_at = site, rank, 0.0, sorted(idle + held)
        self.pace, self.usd_per_s = 1.0 / site.speed, site.usd_per_hour / 3600.0
        self._idle = Counter(idle)

    @property
    def num_used(self) -> int:
        """Slots that run a trial, or get one."""
        return len(self.free_at) - (self._idle & Counter(self.free_at)).total()

    def end_s(self, seconds: float) -> float:
        """Return when a trial would end here."""
        return self.free_at[0] + seconds * self.pace

    def added_usd(self, seconds: float) -> float:
        """Return what it would cost: with the start, if it may be the first one of its slot."""
        free_s, end_s = self.free_at[0], self.end_s(seconds)
        is_first = free_s in (0.0, self.site.start_s)
        return self.usd_per_s * (max(end_s, self.site.min_paid_s) if is_first else end_s - free_s)


def _usd(site: PlannedSite, seconds: float) -> float:
    return site.usd_per_hour * seconds / 3600.0 if site.usd_per_hour else 0.0


def _lumped(items: Sequence[_Item], total_s: float) -> Sequence[_Item]:
    """Return the first trials and those that wait at a site, and others in lumps."""
    if len(items) <= _EXACT:
        return items
    found: list[_Item] = list(items[:_EXACT])
    for number, seconds, home in items[_EXACT:]:
        first, lump_s, at = found[-1]
        if home or at or len(found) == _EXACT or lump_s * _EXACT >= total_s:
            found.append((number, seconds, home))
        else:
            found[-1] = (first, lump_s + seconds, "")
    return found
