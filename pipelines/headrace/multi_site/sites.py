"""Sites of a suite, as its driver knows them: slots, prices, and how their parts stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.batch.meter import meter_of
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.multi_site.site_link import Message, SiteLink
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.runs.site_machines import most_cost
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Progress, StepStatus
from headrace.suites.nodes import slots_of
from headrace.suites.records import Added, Control, Ended, Entry, SiteSummary, Started, Withdrawn
from headrace.suites.site_plan import PlannedSite, Policy, SitePlan
from headrace.suites.suite_state import SiteControl, TrialState
from headrace.suites.trial_policy import Glances

_UNREACHABLE_S = 15.0
LEAST_PAID_S = 60.0
"""Least time that is paid for a rented slot once it opens."""

_PATIENCE_S = 120.0
_PAUSE_S = 30.0
"""Pause of a site after a failure; it doubles each time."""

_OF_SITE = (FailureClass.CAPACITY, FailureClass.PREEMPTED, FailureClass.LOST)


@dataclass(eq=False)
class SiteState:
    """A site, as the driver knows it."""

    site: Site
    role: Role
    link: SiteLink
    role_slots: int
    """Trials at once, by its role."""
    usd_per_hour: float | None
    """US dollars of a slot."""
    is_own: bool
    """Whether its machines are not rented by the hour."""
    speed: float = 1.0
    """Speed relative to the other sites."""
    usual_start_s: float = 0.0
    """Seconds until a node that is requested begins a trial."""
    held: set[int] = field(default_factory=set)
    """Trials that its part has and that have not ended there."""
    withdrawing: set[int] = field(default_factory=set)
    """Trials that the part was asked to give back."""
    cancelled: set[int] = field(default_factory=set)
    """Trials that it was asked to cancel."""
    limit: int | None = None
    """The limit that was sent to the part."""
    failures: int = 0
    """Failures of its part or machines since a trial has ended there."""
    failed_at: float | None = None
    """When its part failed last, seconds since the epoch."""
    unusable_until_s: float = float("-inf")
    opening_s: float | None = None
    """Since when none of its nodes is there, though trials wait, on the monotonic clock."""

    @property
    def name(self) -> str:
        """Name of the site."""
        return self.site.name

    @property
    def silent_s(self) -> float:
        """Seconds since the site was last reached."""
        return time.monotonic() - self.link.look.seen_s

    @property
    def is_reachable(self) -> bool:
        """Whether the site was reached lately."""
        return self.silent_s < _UNREACHABLE_S

    @property
    def slots(self) -> int:
        """Most trials at once by its role, or by what its nodes have reported."""
        summary = self.link.look.summary
        known = summary.slots if summary is not None else None
        return known or self.role_slots

    @property
    def open_slots(self) -> int:
        """Slots whose nodes are there."""
        summary, state = self.link.look.summary, self.link.look.state
        if summary is None or summary.nodes is None or state is None or state.is_final:
            return 0
        return min(summary.nodes * max(self.slots // self.role.nodes, 1), self.slots)

    def take(self, entry: Entry) -> None:
        """Take an entry of the part's journal."""
        if isinstance(entry, Added):
            self.held.add(entry.trial.number)
        elif isinstance(entry, Withdrawn) or (isinstance(entry, Ended) and entry.is_final):
            self.held.discard(entry.number)
            if isinstance(entry, Withdrawn) or not is_of_site(entry):
                self.failures = 0
        if isinstance(entry, Started | Withdrawn | Ended):  # it may have begun before it left
            self.withdrawing.discard(entry.number)

    def pause(self) -> None:
        """Do not use the site for a while, as its machines or its part have failed."""
        self.failures += 1
        self.unusable_until_s = time.monotonic() + _PAUSE_S * 2 ** (self.failures - 1)

    def ask(self, what: Any, moved: Sequence[tuple[int, Path]] = (), **fields: Any) -> None:
        """Send a command to the part; see `Control` and `Message`."""
        control = Control(what=what, by="suite", **fields)
        self.link.send(Message(control=control, moved=tuple(moved)))

    def planned(
        self,
        rows: Sequence[TrialState],
        left_s: Callable[[TrialState], float],
        limit: int | None,
        policy: Policy,
    ) -> PlannedSite:
        """Return the site for the plan.

        Args:
            rows: Its trials that have not ended.
            left_s: Returns the expected seconds until a running trial ends.
            limit: Most trials at once by command; None: no limit.
            policy: The suite's.
        """
        assigned = [row.trial.number for row in rows if row.started is None]
        is_opening = bool(assigned) and not self.open_slots
        self.opening_s = (self.opening_s or time.monotonic()) if is_opening else None
        waits_s = 0.0 if self.opening_s is None else time.monotonic() - self.opening_s
        usual_s = self.usual_start_s
        # overdue nodes are expected to be late by as much again
        start_s = usual_s - waits_s if waits_s < usual_s else waits_s
        if policy == "spread" and waits_s < max(usual_s, _PATIENCE_S):
            start_s = 0.0  # it uses all sites, also those that are slow to start
        return PlannedSite(
            name=self.name,
            slots=self.slots if limit is None else min(self.slots, limit),
            is_own=self.is_own,
            usd_per_hour=self.usd_per_hour or 0.0,
            start_s=start_s,
            speed=self.speed,
            open_slots=self.open_slots,
            running_s=tuple(left_s(row) for row in rows if row.started is not None),
            assigned=tuple(number for number in assigned if number not in self.withdrawing),
            min_paid_s=0.0 if self.is_own else LEAST_PAID_S,
        )

    def shown(
        self, rows: Sequence[TrialState], plan: SitePlan, control: SiteControl
    ) -> SiteSummary:
        """Return the site for `suite.json`; `rows` are all its trials."""
        look, state = self.link.look, self._state(control)
        running = sum(row.started is not None for row in rows)
        ended = sum(row.state.is_final for row in rows)
        again = f"headrace suite site {self.name} --resume continues"
        why = {"unreachable": look.error, "failed": look.why, "paused": again}.get(state, "")
        return SiteSummary(
            site=self.name,
            state=state,
            why=why or look.phase or ("" if running else plan.why),
            run_id=look.run_id,
            slots=self.slots,
            planned=plan.slots,
            limit=control.limit,
            running=running,
            assigned=len(rows) - running - ended,
            ended=ended,
            is_own=self.is_own,
            usd_per_hour=self.usd_per_hour,
            usd=look.usd,
            speed=self.speed,
            eta_s=plan.ends_s or None,
            expected_usd=None if self.usd_per_hour is None else (look.usd or 0.0) + plan.usd,
        )

    def _state(
        self, control: SiteControl
    ) -> Literal["closed", "opening", "open", "paused", "unreachable", "failed"]:
        state = self.link.look.state
        if not self.is_reachable:
            return "unreachable"
        if control.is_paused:
            return "paused"
        if time.monotonic() < self.unusable_until_s:
            return "failed"
        if state is None or state.is_final:
            return "closed"
        return "open" if self.open_slots else "opening"


class PartGlances(Glances):
    """Status of running attempts as their parts report it: folders of trials may hang."""

    def __init__(self, run: RunFolder, sites: Sequence[SiteState]) -> None:
        super().__init__(run)
        self._sites = sites

    def look(self, running: Mapping[int, TrialState]) -> list[TrialState]:
        """Return the trials that run at sites within reach."""
        self._statuses = {
            each.number: StepStatus(
                state=StepState.QUEUED if each.waits else StepState.RUNNING,
                progress=Progress(done=each.done, total=1.0, phase=each.waits),
                metrics=each.metrics,
            )
            for site in self._sites
            for each in (site.link.look.summary.running if site.link.look.summary else ())
            if each.number in running
        }
        near = {site.name for site in self._sites if site.is_reachable}
        return [row for row in running.values() if row.site in near]


def is_of_site(entry: Ended) -> bool:
    """Whether an attempt has failed by the machines of its site, as by a full disk."""
    return entry.failure_class in _OF_SITE


def usd_of_slot(recipe: Recipe, site: Site) -> float | None:
    """Return US dollars per hour of each of a site's trials at once; None if unknown."""
    role = site.roles[recipe.train.role]
    cost = inform(None, f"price of site {site.name}", partial(most_cost, role))
    usd = None if cost is None else cost.usd_per_hour
    return None if usd is None else usd / slots_of(recipe, role)


def site_state(site: Site, recipe: Recipe, link: SiteLink) -> SiteState:
    """Return a site before its part is known."""
    role = site.roles[recipe.train.role]
    return SiteState(
        site=site,
        role=role,
        link=link,
        role_slots=slots_of(recipe, role),
        usd_per_hour=usd_of_slot(recipe, site),
        is_own=meter_of(role) is None,
    )
