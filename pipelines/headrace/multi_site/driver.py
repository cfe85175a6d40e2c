"""The driver of a suite over several sites: assigns trials to sites by the plan, merges their ends.

Sites keep the trials that they have while this driver is away, or they are out of its reach.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from headrace.errors import BudgetError, HeadraceError, LeaseEndsError
from headrace.informing import inform
from headrace.multi_site.site_link import Message
from headrace.multi_site.sites import PartGlances, SiteState, is_of_site
from headrace.runs.planning import AHEAD_S
from headrace.states import FailureClass, StepState
from headrace.steps.context import StepContext
from headrace.steps.mailbox import Failure, StepResult
from headrace.suites.driver import SuiteDriver
from headrace.suites.event_log import Journal, Needs
from headrace.suites.points import PointSource
from headrace.suites.records import (
    PRUNED,
    Added,
    Assigned,
    Ended,
    Entry,
    Started,
    SuiteSummary,
    Withdrawn,
)
from headrace.suites.site_plan import PlanInput, SitePlan, SitesPlan, plan
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_order import Eta, elapsed_s
from headrace.suites.trial_policy import ended, folder_of, judge, left_by

logger = logging.getLogger(__name__)

_WAIT_S = 0.2
_FIRST_READ_S = 10.0
_GIVEN_UP = 10
"""Times `limits.lost_after` after which running trials of an unreachable site begin elsewhere."""

_END_S = 60.0
_STOP_S = 8.0
_LATE = 0.2
"""A trial that takes longer than expected is expected to go on for this share of its time."""

_LEAST_DONE = 0.05
"""Progress after which a running trial is expected by it, not by trials before it."""

_GUESS_S = 60.0
"""Duration of a trial before any has ended."""


class SitesDriver(SuiteDriver):
    """Runs the trials of a suite at several sites."""

    def __init__(
        self,
        context: StepContext,
        journal: Journal,
        source: PointSource,
        sites: Sequence[SiteState],
    ) -> None:
        super().__init__(context, journal, source, Needs())  # the parts know them
        self._glances = PartGlances(self._run, sites)
        self._sites = {each.name: each for each in sites}
        of_site = partial(SuiteState, self.suite_state.objectives)
        self._at_site = defaultdict[str, SuiteState](of_site)
        self._plan = _no_plan(self._sites)
        self._known: set[tuple[str, int, int, str, float]] = set()
        self._expected_s: dict[int, float] = {}
        self._failed_at = defaultdict[int, set[str]](set)
        self._begun_at = time.time()

    def _restore(self) -> None:
        super()._restore()
        for entry in self._journal.entries():
            self._begun_at = min(self._begun_at, entry.at)
            if isinstance(entry, Started | Ended):
                self._known.add(_identity(entry))
        until_s = time.monotonic() + _FIRST_READ_S
        for site in self._sites.values():
            site.link.has_read.wait(max(until_s - time.monotonic(), 0.0))
        self._collect()
        for name, site in self._sites.items():  # commands of an earlier driver may be lost
            again = [row for row in self.suite_state.waiting() if row.site == name]
            self._send_assigned(site, again)

    def _collect(self) -> None:
        found = False
        for site in self._sites.values():
            entries = site.link.take()
            for entry in entries:
                site.take(entry)
            for entry in entries:
                found = True
                self._events.note(*self._merged(site, entry))
        if not found:
            time.sleep(_WAIT_S)

    def _merged(self, site: SiteState, entry: Entry) -> list[Entry]:
        """Return the entries of the suite that follow from one of a part."""
        if isinstance(entry, Withdrawn):
            row = self.suite_state.rows.get(entry.number)
            is_here = row is not None and row.site == site.name and row.started is None
            has_left = is_here and entry.number not in site.held  # else it has come again since
            return [Assigned(number=entry.number, site="")] if has_left else []
        if not isinstance(entry, Started | Ended):
            return []
        row = self.suite_state.rows.get(entry.number)
        if row is None:
            return []
        entry = entry.model_copy(update={"site": site.name})
        attempts, row.attempts = row.attempts, max(row.attempts, entry.attempt)
        if _identity(entry) in self._known or row.state.is_final:
            return []
        is_assigned = row.site == site.name
        if isinstance(entry, Started):
            is_new = is_assigned and row.started is None and entry.attempt > attempts
            if not is_new:
                return []
        else:
            runs = row.started is not None and row.started.site == site.name
            is_current = runs and row.started is not None and row.started.attempt == entry.attempt
            never_began = is_assigned and entry.is_final and row.started is None
            is_done = entry.is_final and entry.state is StepState.SUCCEEDED
            if not (is_current or never_began or is_done):
                return []
            if is_done and not is_assigned and row.site:  # it was given up, and has ended after all
                self._withdraw(self._sites[row.site], {entry.number}, stops=True)
        self._link_folder(site, entry.number)
        self._known.add(_identity(entry))
        return self._judged(site, entry)

    def _judged(self, site: SiteState, entry: Started | Ended) -> list[Entry]:
        """Return an entry of a part; another site tries a trial that this one cannot run."""
        if isinstance(entry, Started) or not entry.is_final:
            return [entry]
        has_begun = self.suite_state.rows[entry.number].started is not None
        is_too_large = not has_begun and entry.failure_class is FailureClass.USER_ERROR
        if not (is_of_site(entry) or is_too_large):
            return [entry]
        self._failed_at[entry.number].add(site.name)
        if not self._avoids(site, entry.number):
            return [entry]
        if not is_too_large:
            site.pause()
        again = entry.model_copy(update={"is_final": False, "is_counted": False})
        return [again, Assigned(number=entry.number, site="", why=entry.message)]

    def _avoids(self, site: SiteState, number: int) -> bool:
        """Whether a site's machines cannot run a trial, and another site may try it."""
        failed = self._failed_at.get(number, set())
        others = (each for name, each in self._sites.items() if name not in failed)
        return site.name in failed and any(map(self._is_open, others))

    def _is_open(self, site: SiteState) -> bool:
        return site.is_reachable and not self._controls.sites[site.name].is_paused

    def _link_folder(self, site: SiteState, number: int) -> None:
        """Let the folder of a trial be that of its part."""
        folder, part = self._run.trial(number).path, site.link.folder(number)
        folder.parent.mkdir(exist_ok=True)
        if part is not None and not (folder.is_symlink() and folder.readlink() == part):
            folder.unlink(missing_ok=True)
            folder.symlink_to(part)

    def _observe(self) -> None:
        for site in self._sites.values():
            look = site.link.look
            if look.failed_at is not None and look.failed_at != site.failed_at:
                site.failed_at = look.failed_at
                if look.state is not StepState.CANCELLED:  # as with the suite, which goes on
                    site.pause()
                self._give_back(site, f"Its part failed: {look.why}", also_running=True)
            lost_s = site.site.limits.lost_after
            if not site.is_reachable and site.silent_s > lost_s:
                why = f"Site {site.name} is out of reach: {look.error or 'it does not answer'}"
                is_given_up = site.silent_s > _GIVEN_UP * lost_s
                leaves = self._controls.sites[site.name].leaves
                self._give_back(site, why, also_running=is_given_up or leaves)

    def _at(self, site: SiteState) -> list[TrialState]:
        """Return the trials of a site that have not ended."""
        rows = self.suite_state.rows.values()
        return [row for row in rows if row.site == site.name and not row.state.is_final]

    def _give_back(self, site: SiteState, why: str, *, also_running: bool) -> None:
        """Take the trials of a site back without its help."""
        rows = [row for row in self._at(site) if also_running or row.started is None]
        entries: list[Entry] = []
        for row in rows:
            if row.started is not None:
                result = self._lost(site, row, row.started, why)
                entry = ended(row.started, result, self.suite_state.objectives)
                entries.append(judged := judge(row, entry, self._spec, is_orphan=True))
                if judged.is_final:
                    continue
            entries.append(Assigned(number=row.trial.number, site="", why=why))
        if rows:
            logger.warning("%d trials leave site %s: %s", len(rows), site.name, why)
            self._withdraw(site, {row.trial.number for row in rows}, stops=True)
            self._events.note(*entries)

    def _lost(self, site: SiteState, row: TrialState, started: Started, why: str) -> StepResult:
        """Return the end of an attempt that is given up; its folder is read only within reach."""
        asked = partial(left_by, folder_of(self._run, row), why)
        left = inform(self._run, f"ends at {site.name}", asked) if site.is_reachable else None
        if left is not None:
            return left
        failure = Failure(failure_class=FailureClass.LOST, error="", message=why)
        return StepResult(
            state=StepState.LOST,
            failure=failure,
            started_at=started.at,
            finished_at=max(time.time() - site.silent_s, started.at),  # as far as is known
        )

    def _withdraw(self, site: SiteState, numbers: set[int], *, stops: bool) -> None:
        if new := numbers - site.withdrawing:
            site.withdrawing |= new
            site.ask("withdraw", numbers=tuple(sorted(new)), stops=stops)

    def _stop(self, row: TrialState, why: str) -> None:
        if why.startswith(PRUNED) and (site := self._sites.get(row.site)) is not None:
            site.link.send(Message(pruned=((row.trial.number, row.attempts, why),)))

    def _remove_checkpoints(self, row: TrialState) -> None:
        """Let a part remove those of the best of its trials; others it removes by itself."""
        self._at_site[row.site].compare(row)
        if self._at_site[row.site].best is row and row.site in self._sites:
            self._sites[row.site].link.send(Message(surplus=(row.trial.number,)))

    def _apply_commands(self) -> None:
        assigned = [row for row in self.suite_state.waiting() if row.site]
        super()._apply_commands()
        for name, site in self._sites.items():
            rows = [*assigned, *self.suite_state.running.values()]
            unwanted = {row.trial.number for row in rows if row.unwanted and row.site == name}
            if new := unwanted - site.cancelled:
                site.cancelled |= new
                site.ask("cancel", numbers=tuple(sorted(new)))

    def _begin(self) -> None:
        """Trials are assigned once per second, with the plan."""

    def _num_wanted(self) -> int:
        slots = sum(site.slots for site in self._usable())
        most = min(slots, self._controls.whole.limit or slots)
        return most - len(self.suite_state.running) - len(self._queue)

    def _usable(self) -> list[SiteState]:
        if self._controls.whole.is_paused or self._has_too_many_failures:
            return []
        waiting = [row.trial.number for row in self.suite_state.waiting()]
        return [
            site
            for site in self._sites.values()
            if self._is_open(site)
            and time.monotonic() >= site.unusable_until_s
            and not (waiting and all(self._avoids(site, number) for number in waiting))
        ]

    def _ask(self) -> None:
        for name, site in self._sites.items():
            mine = {row.trial.number for row in self._at(site)}
            left = mine if self._controls.sites[name].leaves else set()
            self._withdraw(site, left | (site.held - mine), stops=True)
        now = self.plan_input()
        self._plan = found = plan(now)
        self._check_budget(now)
        for planned in found.sites:
            site = self._sites[planned.name]
            if site.link.look.run_id and planned.slots not in (0, site.limit):
                site.limit = planned.slots
                site.ask("limit", limit=planned.slots)
        rows = self.suite_state.rows
        for number, name in found.withdraw:
            self._withdraw(self._sites[name], {number}, stops=False)
        assign = [*self._possible(found.assign[: self._most_to_assign()])]
        for name, site in self._sites.items():
            some = [rows[number] for number, at in assign if at == name]
            self._events.note(*(Assigned(number=row.trial.number, site=name) for row in some))
            self._send_assigned(site, some)

    def _check_budget(self, now: PlanInput) -> None:
        """Raise if no trial runs or is with a site, and the budget pays none at any site."""
        sites, most_usd, left_usd = self._sites, self._spec.budget, max(now.budget_usd, 0.0)
        is_held = any(each.held and not each.is_reachable for each in sites.values())  # may be done
        waits = self._controls.whole.is_paused or any(map(self._at, sites.values()))
        if most_usd is None or is_held or waits:
            return
        every = [replace(each, slots=sites[each.name].slots) for each in now.sites]  # or later
        pays = (
            each for each in every if each.open_slots
            or each.usd_per_hour * sites[each.name].role_slots * AHEAD_S / 3600 <= left_usd
        )  # fmt: skip
        whole = replace(now, sites=tuple(every), budget_usd=math.inf)
        if not plan(replace(now, sites=tuple(pays))).assign and plan(whole).assign:
            raise BudgetError(
                f"The rest, ${left_usd:.2f}, of `suite.budget`, ${most_usd:.2f}, opens no "
                f"lease, or pays none of the {len(now.waiting)} trials that wait",
                f"Ended trials are kept: headrace results {self._run.run_id}. "
                "Start another suite for more.",
            )

    def _possible(self, assign: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Yield assignments of the plan.

        A trial that avoids a site, or that another has not let go yet, leaves the place to another.
        """
        waiting = [number for number, _ in self._queue.ordered()] if assign else []
        free = dict.fromkeys(each for each in waiting if not self.suite_state.rows[each].site)
        for planned, name in assign:
            site, known = self._sites[name], [planned] if planned in free else []
            places = (each for each in chain(known, free) if not self._avoids(site, each))
            if (number := next(places, None)) is not None:
                del free[number]
                yield number, name

    def _most_to_assign(self) -> int:
        """Return how many more trials may be with the sites, running or not."""
        most, limit = self._most_to_begin(), self._controls.whole.limit
        if limit is None:
            return most
        return max(most - sum(bool(row.site) for row in self.suite_state.waiting()), 0)

    def _send_assigned(self, site: SiteState, rows: Sequence[TrialState]) -> None:
        if not rows:
            return
        trials = (row.trial.model_copy(update={"priority": row.priority}) for row in rows)
        added = tuple(
            Added(trial=trial, attempts=row.attempts)
            for trial, row in zip(trials, rows, strict=True)
        )
        numbers = {row.trial.number for row in rows}
        site.withdrawing -= numbers
        site.cancelled -= numbers
        moved = tuple(
            (row.trial.number, source) for row in rows if (source := self._saved(row, site))
        )
        site.ask("assign", moved, trials=added)

    def _saved(self, row: TrialState, site: SiteState) -> Path | None:
        """Return the folder of a trial at the site where it last ran, if it is within reach."""
        number, near = row.trial.number, (each for each in self._sites.values() if each is not site)
        link = self._run.trial(number).path
        if not row.attempts or not link.is_symlink():
            return None
        folder = link.readlink()  # the folder itself may hang
        places = (each.link.folder(number) for each in near if each.is_reachable)
        return folder if folder in places else None

    def plan_input(self) -> PlanInput:
        """Return the suite at this moment, for the plan."""
        queue = self._queue.ordered()
        self._expected_s |= {number: seconds for number, seconds in queue if seconds}
        rows = self.suite_state.rows.values()
        took_s = [row.took_s for row in rows if row.state is StepState.SUCCEEDED]
        guess_s = statistics.fmean(self._expected_s.values() or took_s or [_GUESS_S])
        asked = partial(self._order.speeds, list(self._sites), self.suite_state)
        speeds = inform(self._run, "speed of sites", asked, dict) or {}
        usable, sites = self._usable(), []
        for site in self._sites.values():
            start = partial(self._order.start_s, site.site, self._context.recipe.train.role)
            site.usual_start_s = inform(self._run, "start of a site", start, float) or 0.0
            site.speed = speeds.get(site.name, 1.0)
            limit = self._controls.sites[site.name].limit if site in usable else 0
            left_s = partial(self._left_s, site.speed, guess_s)
            sites.append(site.planned(self._at(site), left_s, limit, self._spec.policy))
        deadline, budget = self._spec.deadline, self._spec.budget
        spent = sum(site.link.look.usd or 0.0 for site in self._sites.values())
        return PlanInput(
            sites=tuple(sites),
            waiting=tuple((number, seconds or guess_s) for number, seconds in queue),
            policy=self._spec.policy,
            left_s=math.inf if deadline is None else deadline + self._begun_at - time.time(),
            budget_usd=math.inf if budget is None else budget - spent,
        )

    def _left_s(self, speed: float, guess_s: float, row: TrialState) -> float:
        """Return the expected seconds until a running trial ends."""
        done, elapsed = self._glances.done(row), elapsed_s(row)
        if done > _LEAST_DONE:
            return elapsed * (1 - done) / done
        whole_s = self._expected_s.get(row.trial.number, guess_s) / speed
        return max(whole_s - elapsed, _LATE * elapsed)  # else a trial would wait for its slot

    def _is_over(self) -> bool:
        if not super()._is_over():
            return False
        self._close(_END_S)
        return True

    def _close(self, within_s: float) -> None:
        """Wait until the parts within reach have ended, so that no machine is left."""
        for site in self._sites.values():
            if site.link.look.run_id:
                site.ask("close")
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            self._collect()
            near = [each.link for each in self._sites.values() if each.is_reachable]
            states = [each.look.state for each in near]
            is_sent = not any(each.num_unsent for each in near)
            if is_sent and all(state is None or state.is_final for state in states):
                break
        self._plan = _no_plan(self._sites)

    def _stop_attempts(self, why: HeadraceError) -> None:
        """Take all trials back; if only the driver's lease ends, the sites go on."""
        if isinstance(why, LeaseEndsError):
            return
        for site in self._sites.values():
            self._withdraw(site, {row.trial.number for row in self._at(site)}, stops=True)
        self._close(_STOP_S)

    def _summary(self, eta: Eta | None) -> SuiteSummary:
        planned = {each.name: each for each in self._plan.sites}
        rows = tuple(
            site.shown(
                [row for row in self.suite_state.rows.values() if row.site == name],
                planned[name],
                self._controls.sites[name],
            )
            for name, site in self._sites.items()
        )
        if eta is None and math.isfinite(self._plan.makespan_s) and self._plan.makespan_s:
            eta = Eta(seconds=self._plan.makespan_s, half_s=0.3 * self._plan.makespan_s)
        return super()._summary(eta).model_copy(update={"sites": rows})


def _no_plan(names: Iterable[str]) -> SitesPlan:
    return SitesPlan(sites=tuple(SitePlan(name=name) for name in names))


def _identity(entry: Started | Ended) -> tuple[str, int, int, str, float]:
    return entry.site, entry.number, entry.attempt, entry.event, entry.at
