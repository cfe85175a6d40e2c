"""What machines cost, from their rows in the ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.cli.words import cost_words, money
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import MachineRecord
from headrace.runs.costs import billed_s, cost_of, run_cost, start_split
from support.ledger_rows import lease_row, machine_row, run_row

_HOUR_S = 3600.0
_NUM_PLACES, _CAMPAIGN_HOURS = 60, 16_542
_USD_PER_HOUR = 0.752


def _campaign() -> Iterator[MachineRecord]:
    """16,542 hours on 60 machines at a time: attempts of 1 h to 10 days, some of them lost.

    Machines differ in market, but all were had for the same price; what a lost machine had
    worked is paid for, and the next one goes on.
    """
    draw = random.Random(7)
    left_s, number = [_CAMPAIGN_HOURS * _HOUR_S / _NUM_PLACES] * _NUM_PLACES, 0
    for place in range(_NUM_PLACES):
        at = draw.uniform(0.0, _HOUR_S)
        while left_s[place] > 0.0:
            took_s = min(draw.uniform(1.0, 256.0) * _HOUR_S + draw.random(), left_s[place])
            left_s[place] -= took_s
            is_lost = draw.random() < 0.2
            yield machine_row(
                f"i-{number}",
                lease_id=f"lease-{place % 4}",
                market=draw.choice(["spot", "on-demand"]),
                created_at=at,
                started_at=at,
                ended_at=at + took_s,
                seen_at=at + took_s,
                is_estimate=is_lost,
                billed_s=billed_s(at, at + took_s),
                usd_per_hour=_USD_PER_HOUR,
                price_source="site file",
            )
            at, number = at + took_s + draw.uniform(30.0, 600.0), number + 1


@pytest.mark.usefixtures("headrace_home")
def test_the_cost_of_a_campaign_is_that_of_all_its_attempts():
    """pains 37: 60 x g4dn.2xlarge at $0.752, lost and spot machines among them."""
    ledger, rows = open_ledger(), list(_campaign())
    ledger.add_run(run_row())
    for number in range(4):
        row = lease_row(f"lease-{number}", role=("cpu", "gpu")[number % 2])
        ledger.add_lease(row, max_active=4)
    ledger.put_machines(rows)
    cost = run_cost("run-1", now=1e9)
    assert cost.usd == pytest.approx(12_439.69, rel=0.01)
    assert cost.usd == pytest.approx(_CAMPAIGN_HOURS * _USD_PER_HOUR, abs=len(rows) * 0.752 / 3600)
    assert cost.hours == pytest.approx(_CAMPAIGN_HOURS, rel=1e-5)
    assert len(rows) > 100
    assert sum(line.machines for line in cost.lines) == len(rows)
    assert sum(line.usd or 0.0 for line in cost.lines) == pytest.approx(cost.usd)
    assert {(line.role, line.market) for line in cost.lines} == {
        (role, market) for role in ("cpu", "gpu") for market in ("spot", "on-demand")
    }
    assert 0 < cost.estimated < len(rows)


@pytest.mark.parametrize(
    ("seconds", "billed"), [(0.0, 60.0), (59.9, 60.0), (60.1, 61.0), (3600.0, 3600.0)]
)
def test_a_machine_is_paid_by_the_second_for_a_minute_at_least(seconds: float, billed: float):
    assert billed_s(100.0, 100.0 + seconds) == billed


def test_what_has_not_ended_costs_until_now_and_what_is_unknown_is_told():
    """pains 37."""
    rows = [
        machine_row("i-1", started_at=0.0, usd_per_hour=2.0, price_source="site file"),
        machine_row("i-2", started_at=0.0, market="spot", ended_at=9.0, is_estimate=True),
    ]
    cost = cost_of(rows, 1800.0)
    assert (cost.usd, cost.unpriced, cost.estimated) == (1.0, 1, 1)
    assert [line.usd for line in cost.lines] == [1.0, None]
    assert [money(cost), money(cost_of(rows[1:], 9.0)), money(None)] == ["$1.00+?", "?", ""]
    assert cost_words(cost).splitlines() == [
        "$1.00 for 0.52 hours, and 1 machines of unknown price, "
        "the end of 1 machines is an estimate",
        "$1.00: 1 x g4dn.2xlarge (on-demand), 0.50 h, $2 an hour (site file)",
        "?: 1 x g4dn.2xlarge (spot), 0.0167 h, price not known",
    ]


def test_the_start_of_a_machine_is_split():
    times = {"created_at": 5.0, "started_at": 20.0, "booted_at": 50.0, "joined_at": 70.0}
    split = {"queue_wait_s": 15.0, "boot_s": 30.0, "software_s": 12.0, "join_s": 8.0}
    assert start_split(machine_row(prepared_at=62.0, **times)) == split
    never_came = machine_row(created_at=5.0, started_at=20.0)
    assert list(start_split(never_came).values()) == [15.0, None, None, None]


@pytest.mark.usefixtures("headrace_home")
def test_a_run_whose_machines_nobody_counts_has_no_cost():
    open_ledger().add_run(run_row())
    assert run_cost("run-1") is None
