"""A suite over several sites in simulated time: the planner of the suite's driver decides."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.suites.site_plan import PlanInput, PlannedSite, SitesPlan, plan
from headrace_foresight.scenario import Nodes, Outcome
from headrace_foresight.simulated_nodes import SimulatedTrial, World

_CALLS = 200
"""A suite as planned at first is divided into so many parts; at least once in each it is planned
again, and trials are assigned for one of them ahead."""


@dataclass(eq=False)
class PlannedWorld(World):
    """Sites of a suite; a trial waits at none, or at that to which it is assigned."""

    at_sites: dict[str, list[SimulatedTrial]] = field(default_factory=dict)
    moves: int = 0
    planned_at: float = -math.inf
    every_s: float = 0.0
    is_due: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_sites = {kind.site: [] for kind in self.scenario.nodes}

    def put(self, piece: SimulatedTrial) -> None:
        """Let a trial wait, and plan when all trials of this moment have come."""
        bisect.insort(self.waiting, piece, key=self.place_of)
        if not self.is_due:
            self.is_due = True
            self.env.timeout(0.0).callbacks.append(lambda _: self.plan())

    def waiting_for(self, kind: Nodes) -> list[SimulatedTrial]:
        """Return the trials that are assigned to a site."""
        return self.at_sites[kind.site]

    def is_wanted(self, kind: Nodes) -> bool:
        """Whether more trials wait than nodes that come have room for."""
        room = sum(
            count * each.gpus for each, count in self.opening.items() if each.site == kind.site
        )
        return self.has_work(kind) and len(self.at_sites[kind.site]) > room * self.scenario.pack

    def ended(self, kind: Nodes, pieces: Sequence[SimulatedTrial]) -> None:
        """SitesPlan again if the site has no more trials, or it is time."""
        super().ended(kind, pieces)
        is_time = self.env.now >= self.planned_at + self.every_s
        if self.waiting and (is_time or not self.at_sites[kind.site]):
            self.plan()

    def plan(self) -> None:
        """Assign and take back trials by the plan of this moment."""
        self.is_due, self.planned_at = False, self.env.now
        found = plan(self.input())
        if not self.every_s and found.makespan_s < math.inf:
            self.every_s = found.makespan_s / _CALLS
            found = plan(self.input())
        self.carry_out(found)
        if found.withdraw:
            self.moves += len(found.withdraw)
            self.carry_out(plan(self.input()))
        self.wake()

    def carry_out(self, found: SitesPlan) -> None:
        """Let trials wait where the plan has them."""
        pieces = {piece.rank: piece for piece in self.waiting}
        for number, site in found.assign:
            self.waiting.remove(pieces[number])
            bisect.insort(self.at_sites[site], pieces[number], key=self.place_of)
        for number, site in found.withdraw:
            piece = next(each for each in self.at_sites[site] if each.rank == number)
            self.at_sites[site].remove(piece)
            bisect.insort(self.waiting, piece, key=self.place_of)

    def input(self) -> PlanInput:
        """Return what the driver of the suite would know now."""
        every = sorted(sum(self.at_sites.values(), self.waiting), key=self.place_of)
        now, scenario = self.env.now, self.scenario
        live_usd = sum(
            (now - each.begun_s) * (each.kind.usd_per_hour or 0.0) / 3600 for each in self.live
        )
        return PlanInput(
            sites=tuple(map(self.site, self.at_sites)),
            waiting=tuple((piece.rank, piece.expected_left_s) for piece in every),
            policy=scenario.policy or "own-first",
            left_s=scenario.deadline_s - now,
            budget_usd=scenario.budget_usd - sum(self.usd_of.values()) - live_usd,
            ahead_s=max(PlanInput.ahead_s, self.every_s),
        )

    def site(self, name: str) -> PlannedSite:
        """Return a site as the driver would see it now."""
        kinds = [kind for kind in self.scenario.nodes if kind.site == name]
        live = [each for each in self.live if each.is_up and each.kind.site == name]
        running_s = (
            (piece.start_left_s + piece.expected_left_s) / each.kind.speed
            - (self.env.now - piece.at_s)
            for each in live
            for piece in each.held
        )
        return replace(
            planned_site(kinds, self.scenario.pack, self.scenario.restart_s),
            open_slots=sum(each.kind.gpus * self.scenario.pack for each in live),
            running_s=tuple(max(each, 1.0) for each in running_s),
            assigned=tuple(piece.rank for piece in self.at_sites[name]),
        )

    def outcome(self) -> Outcome:
        """Return what all of it took; without an end if trials are left over."""
        found = replace(super().outcome(), moves=self.moves)
        return replace(found, makespan_s=math.inf) if self.waiting else found


def planned_site(kinds: Sequence[Nodes], pack: int = 1, restart_s: float = 0.0) -> PlannedSite:
    """Return a site with nodes of these kinds, before it is used."""
    first, slots = kinds[0], sum(kind.count * kind.gpus * pack for kind in kinds)
    return PlannedSite(
        name=first.site,
        slots=slots,
        is_own=first.is_own,
        usd_per_hour=sum(kind.count * (kind.usd_per_hour or 0.0) for kind in kinds) / max(slots, 1),
        start_s=first.queue_s + first.boot_s + restart_s,
        speed=first.speed,
        min_paid_s=first.boot_s,
    )
