"""Which of several sites take which trials of a suite."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.suites.site_plan import PlanInput, PlannedSite, SitesPlan, plan

HOUR_S = 3600.0

LAB = PlannedSite(name="lab", slots=2, open_slots=2)
SLOW = PlannedSite(name="slow", slots=1, open_slots=1, speed=0.1)
AWS = PlannedSite(
    name="aws", slots=9, is_own=False, usd_per_hour=1.0, start_s=60.0, min_paid_s=60.0
)
DEAR = replace(AWS, name="dear", usd_per_hour=5.0, speed=4.0)
CLOSED, FAST = replace(LAB, slots=0), replace(DEAR, speed=6.0)
POOR = replace(AWS, speed=0.8, usd_per_hour=0.1)


def asked(*sites: PlannedSite, trials: list[float], **changes: object) -> PlanInput:
    waiting = tuple(enumerate(sorted(trials, reverse=True), 1))
    return PlanInput(sites=sites, waiting=waiting, **changes)  # type: ignore[arg-type]


def slots_of(found: SitesPlan) -> dict[str, int]:
    return {each.name: each.slots for each in found.sites}


EIGHT_HOURS = [HOUR_S] * 8


@pytest.mark.parametrize(
    ("now", "slots"),
    [
        (asked(LAB, AWS, trials=EIGHT_HOURS), {"lab": 2, "aws": 0}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, policy="spread"), {"lab": 2, "aws": 6}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=5 * HOUR_S), {"lab": 2, "aws": 0}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=3.5 * HOUR_S), {"lab": 2, "aws": 1}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=2.2 * HOUR_S), {"lab": 2, "aws": 2}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=-1.0), {"lab": 2, "aws": 6}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=1, budget_usd=2.1), {"lab": 2, "aws": 1}),
        (asked(LAB, AWS, trials=EIGHT_HOURS, left_s=1, budget_usd=0), {"lab": 2, "aws": 0}),
        (asked(CLOSED, AWS, trials=EIGHT_HOURS), {"lab": 0, "aws": 8}),
        (asked(CLOSED, AWS, DEAR, trials=EIGHT_HOURS), {"lab": 0, "aws": 8, "dear": 0}),
        (asked(AWS, DEAR, trials=EIGHT_HOURS, policy="cheapest"), {"aws": 8, "dear": 0}),
        (asked(AWS, FAST, trials=EIGHT_HOURS, policy="cheapest"), {"aws": 0, "dear": 8}),
        (asked(LAB, AWS, trials=[HOUR_S, 5.0], policy="cheapest"), {"lab": 2, "aws": 0}),
        # the cheaper site is too slow to help: only the faster one opens
        (asked(LAB, POOR, DEAR, trials=[8 * HOUR_S] * 3, left_s=8.5 * HOUR_S),
         {"lab": 2, "aws": 0, "dear": 1}),
        # 1 h of starting paid slots is not worth 10 s of work in each
        (asked(replace(AWS, min_paid_s=HOUR_S), trials=[10.0] * 9), {"aws": 1}),
        (asked(replace(LAB, running_s=(50.0, 50.0, 50.0)), trials=[]), {"lab": 2}),
    ],
)  # fmt: skip
def test_slots_by_policy_deadline_and_budget(now, slots):
    assert slots_of(plan(now)) == slots


def test_a_deadline_is_met_with_the_fewest_rented_slots_and_what_they_cost_is_planned():
    trials = [HOUR_S * (1 + index % 7) for index in range(60)]
    now = asked(LAB, replace(AWS, slots=40), trials=trials, left_s=24 * HOUR_S)
    found = plan(now)
    (rented,) = [each for each in found.sites if each.name == "aws"]
    assert found.makespan_s <= 0.95 * now.left_s
    assert not found.is_late
    fewer = plan(replace(now, sites=(LAB, replace(AWS, slots=rented.slots - 1))))
    assert fewer.makespan_s > 0.95 * now.left_s
    assert rented.usd == pytest.approx(found.usd)
    hours = sum(trials) / HOUR_S - 2 * 24
    assert hours <= rented.usd <= rented.slots * 24


def test_who_cannot_be_used_says_why():
    found = plan(asked(replace(LAB, slots=0), SLOW, AWS, trials=[5.0]))
    assert [each.why for each in found.sites] == [
        "has no usable slots now", "", "not needed without a deadline: rented",
    ]  # fmt: skip
    nowhere = plan(asked(replace(LAB, slots=0, assigned=(1,)), trials=[5.0]))
    assert (nowhere.makespan_s, nowhere.withdraw) == (math.inf, ((1, "lab"),))
    poor = plan(asked(AWS, trials=[HOUR_S], budget_usd=0.5))
    assert (poor.makespan_s, poor.assign, poor.usd) == (math.inf, (), 0.0)
    assert poor.sites[0].why == "the budget is used up"


def test_only_trials_that_begin_soon_are_assigned():
    long = plan(asked(replace(LAB, running_s=(5.0, 900.0)), trials=[HOUR_S] * 9))
    assert long.assign == ((1, "lab"),)  # the slot that is free in 5 s
    short = plan(asked(LAB, trials=[1.0] * 100))
    assert 10 <= len(short.assign) <= 24  # the next ten seconds
    opening = plan(asked(LAB, AWS, trials=[HOUR_S] * 50, policy="spread"))
    assert len(opening.assign) == 2 + 9
    assert opening.assign[:2] == ((1, "lab"), (2, "lab"))


def test_the_last_long_trial_waits_for_a_fast_site():
    found = plan(asked(replace(LAB, running_s=(60.0, 60.0)), SLOW, trials=[HOUR_S, 20.0, 1.0]))
    assert found.assign == ((3, "slow"),)


def test_a_trial_is_taken_back_if_another_site_begins_it_sooner():
    queued = PlannedSite(name="part", slots=1, start_s=2 * HOUR_S, assigned=(1,))
    busy = replace(LAB, running_s=(HOUR_S, HOUR_S))
    for lab, taken in (
        (LAB, True),
        (busy, False),
        (replace(LAB, start_s=7190.0, open_slots=0), False),
    ):
        now = asked(lab, queued, trials=[HOUR_S])
        assert plan(now).withdraw == (((1, "part"),) if taken else ())
    closed = replace(queued, slots=0)
    assert plan(asked(busy, closed, trials=[HOUR_S])).withdraw == ((1, "part"),)
    rented = replace(AWS, assigned=(1,))
    assert plan(asked(busy, rented, trials=[HOUR_S])).withdraw == ((1, "aws"),)
    begins = replace(AWS, assigned=(1,), open_slots=1)  # it is there, and begins at once
    assert plan(asked(busy, begins, trials=[HOUR_S])).withdraw == ()


def test_rented_slots_are_kept_until_the_deadline_is_safe_without_them():
    def rented(left_h: float, open_slots: int) -> int:
        aws = replace(AWS, open_slots=open_slots, running_s=(HOUR_S,) * open_slots)
        return slots_of(plan(asked(LAB, aws, trials=[HOUR_S] * 20, left_s=left_h * HOUR_S)))["aws"]

    assert [rented(left_h, 0) for left_h in (9.0, 11.0, 13.0)] == [1, 0, 0]
    assert [rented(left_h, 1) for left_h in (9.0, 11.0, 13.0)] == [1, 1, 0]


times = st.floats(0.0, 1e5)
some_sites = st.builds(
    PlannedSite,
    name=st.just(""),
    slots=st.integers(0, 4),
    is_own=st.booleans(),
    usd_per_hour=st.sampled_from([0.0, 0.5, 3.0]),
    start_s=st.one_of(st.just(0.0), times),
    speed=st.sampled_from([0.3, 1.0, 2.5]),
    open_slots=st.integers(0, 5),
    running_s=st.lists(times, max_size=4).map(tuple),
    min_paid_s=st.sampled_from([0.0, 60.0, 3600.0]),
)


@st.composite
def situations(draw: st.DrawFn) -> PlanInput:
    trials = draw(st.lists(st.floats(0.1, 1e5), max_size=25))
    numbers = iter(draw(st.permutations(range(1, len(trials) + 1))))
    sites = []
    for index, each in enumerate(draw(st.lists(some_sites, max_size=4))):
        assigned = tuple(next(numbers, 0) for _ in range(draw(st.integers(0, 3))))
        sites.append(replace(each, name=f"s{index}", assigned=tuple(filter(None, assigned)),
                             open_slots=max(each.open_slots, len(each.running_s))))  # fmt: skip
    return asked(
        *sites,
        trials=trials,
        policy=draw(st.sampled_from(["own-first", "cheapest", "spread"])),
        left_s=draw(st.one_of(st.just(math.inf), st.floats(-10.0, 1e6))),
        budget_usd=draw(st.one_of(st.just(math.inf), st.floats(0.0, 200.0))),
    )


def carried_out(now: PlanInput, found: SitesPlan) -> PlanInput:
    gone = set(found.withdraw)
    sites = tuple(
        replace(
            site,
            assigned=(
                *(each for each in site.assigned if (each, site.name) not in gone),
                *(number for number, name in found.assign if name == site.name),
            ),
        )
        for site in now.sites
    )
    return replace(now, sites=sites)


@given(situations())
def test_every_plan_keeps_the_rules(now):
    found, sites = plan(now), {each.name: each for each in now.sites}
    at = {number: each.name for each in now.sites for number in each.assigned}
    assert [each.name for each in found.sites] == list(sites)
    slots = slots_of(found)
    assert all(count <= sites[name].slots for name, count in slots.items())
    assert all(at.get(number) == name for number, name in found.withdraw)
    assert all(number not in at and slots[name] > 0 for number, name in found.assign)
    assert len({number for number, _ in found.assign}) == len(found.assign)
    runs_usd = plan(replace(now, waiting=())).usd
    assert found.usd <= max(now.budget_usd, runs_usd) * (1 + 1e-9) + 1e-9 or any(
        each.assigned for each in now.sites
    )
    assert found.is_late == (found.makespan_s > now.left_s)
    own = [each for each in now.sites if each.is_own and each.slots]
    if now.policy == "own-first" and own and now.left_s == math.inf:
        assert all(not count or sites[name].is_own for name, count in slots.items())
    if any(each.slots and not each.usd_per_hour for each in now.sites) and now.policy == "spread":
        assert found.makespan_s < math.inf
    assert plan(now) == found


@given(situations())
def test_an_unchanged_situation_gives_no_further_orders(now):
    """Once trials have come back from unusable sites, no trial returns to a site that it left."""
    now = carried_out(now, plan(now))
    left: set[tuple[int, str]] = set()
    for _ in range(4):
        found = plan(now)
        assert not left & set(found.assign)
        left |= set(found.withdraw)
        now = carried_out(now, found)
    found = plan(now)
    assert (found.assign, found.withdraw) == ((), ())


@pytest.mark.parametrize(("count", "most_s"), [(1400, 0.02), (100_000, 0.5)])
def test_planning_is_quick(count, most_s):
    sites = (
        replace(LAB, slots=8, open_slots=8),
        PlannedSite(name="part", slots=16, start_s=HOUR_S),
        replace(AWS, slots=60),
    )
    trials = [HOUR_S * (1 + index % 200) for index in range(count)]
    now = asked(*sites, trials=trials, left_s=sum(trials) / 50, budget_usd=sum(trials) / HOUR_S)
    took_s = []
    for _ in range(5):
        began_s = time.process_time()
        found = plan(now)
        took_s.append(time.process_time() - began_s)
    assert found.makespan_s <= now.left_s
    assert min(took_s) < most_s
