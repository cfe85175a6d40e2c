"""What machines cost: their rows in the ledger, and the site's own price."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.meter import Machine
from headrace.cli.words import cost_words, money
from headrace.clusters.lease_records import Ending
from headrace.clusters.node_marks import VARIABLE, NodeLine, NodeMarks, marks_of, note_joined
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import MachineRecord
from headrace.recipe.site import Role
from headrace.runs.costs import billed_s, cost_of, run_cost, start_split
from headrace.runs.machine_records import MachineEvidence, record_machines, rows_of
from headrace.runs.site_machines import most_cost
from headrace.states import LeaseState
from support.factories import write_lease
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


@pytest.mark.parametrize(("market", "usd"), [("", 0.01), ("spot", 0.06)])
def test_only_an_instance_costs_a_minute_at_least_while_it_runs(market: str, usd: float):
    rows = [machine_row("n-1", started_at=0.0, market=market, usd_per_hour=3.6)]
    assert cost_of(rows, 10.0).usd == pytest.approx(usd)


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


def _machine(machine_id: str = "i-1", **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "machine_id": machine_id,
        "job": "headrace-lease-1",
        "kind": "g4dn.2xlarge",
        "market": "spot",
        "place": "us-east-1a",
        "asked_at": 90.0,
        "started_at": 100.0,
    }
    return Machine(**{**values, **changes})


def _evidence(**changes: Any) -> MachineEvidence:
    values: dict[str, Any] = {
        "lease_id": "lease-1",
        "asked_at": None,
        "now": 1000.0,
        "last_sign": 900.0,
        "lifetime_s": 5000.0,
        "marks": {},
    }
    return MachineEvidence(**{**values, **changes})


_BOOT = NodeMarks(booted_at=110.0, prepared_at=115.0, joined_at=118.5)


def test_a_machine_that_lives_is_entered_with_the_split_of_its_start():
    (row,) = rows_of(_evidence(marks={"i-1": _BOOT}), (), [_machine()])
    assert (row.created_at, row.started_at, row.ended_at) == (90.0, 100.0, None)
    assert (row.booted_at, row.prepared_at, row.joined_at) == (110.0, 115.0, 118.5)
    assert (row.billed_s, row.usd_per_hour) == (900.0, None)
    (of_gang,) = rows_of(_evidence(asked_at=40.0), (), [_machine()])
    assert of_gang.created_at == 40.0


def test_what_is_known_stays_and_what_does_not_change_is_not_written():
    ended = {"ended_at": 500.0, "seen_at": 500.0, "billed_s": 400.0, "usd_per_hour": 0.3}
    row = machine_row(created_at=90.0, started_at=100.0, market="spot", **ended)
    assert rows_of(_evidence(), [row], [_machine(ended_at=500.0)]) == []
    assert rows_of(_evidence(), [row], []) == []
    (again,) = rows_of(_evidence(), [row], [_machine(ended_at=480.0)])
    assert (again.ended_at, again.usd_per_hour) == (480.0, 0.3)


@pytest.mark.parametrize(
    ("marks", "before", "ended_at", "is_estimate"),
    [
        ({}, None, 1000.0, True),  # when it was seen to have ended
        ({}, 700.0, 700.0, True),  # not later each time that it is looked at
        ({"i-1": NodeMarks(ended_at=650.0)}, 700.0, 650.0, False),  # the node told it
    ],
)
def test_the_end_of_a_machine_that_ec2_tells_no_time_of(
    marks: dict[str, NodeMarks], before: float | None, ended_at: float, is_estimate: bool
):
    known = [] if before is None else [machine_row(ended_at=before, is_estimate=True)]
    seen = [_machine(ended_at=1000.0, is_estimate=True)]
    rows = rows_of(_evidence(marks=marks), known, seen)
    assert [(row.ended_at, row.is_estimate) for row in rows] == [(ended_at, is_estimate)]


@pytest.mark.parametrize(
    ("changes", "ended_at", "is_estimate"),
    [
        ({"marks": {"i-1": NodeMarks(ended_at=650.0)}}, 650.0, False),
        ({}, 900.0, True),  # the last sign of the lease
        ({"last_sign": 200.0}, 300.0, True),  # when it was seen itself
        ({"last_sign": 1e6}, 5100.0, True),  # its hard lifetime
    ],
)
def test_a_machine_that_ec2_has_forgotten_ends_at_its_last_sign(
    changes: dict[str, Any], ended_at: float, is_estimate: bool
):
    known = [machine_row(started_at=100.0, seen_at=300.0, usd_per_hour=0.3)]
    (row,) = rows_of(_evidence(**changes), known, [])
    assert (row.ended_at, row.is_estimate) == (ended_at, is_estimate)
    assert (row.billed_s, row.usd_per_hour) == (ended_at - 100.0, 0.3)


def test_a_machine_that_only_its_own_file_tells_of_is_entered():
    marks = _BOOT.model_copy(update={"kind": "g4dn.2xlarge", "market": "spot", "ended_at": 400.0})
    (row,) = rows_of(_evidence(marks={"i-9": marks}), (), [])
    assert (row.machine_id, row.kind, row.market) == ("i-9", "g4dn.2xlarge", "spot")
    assert (row.started_at, row.ended_at, row.billed_s) == (110.0, 400.0, 290.0)
    assert row.is_estimate


def test_nodes_tell_what_they_are_and_a_cut_line_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = LeaseFolder(tmp_path)
    folder.jobs.mkdir()
    first, second = tmp_path / "host.log.i-1.node", folder.jobs / "000001.log.i-2.node"
    first.write_text("kind g5.xlarge\nmarket spot\nplace us-east-1a\nbooted_at 12\nprepared_at 1x")
    second.write_bytes(b"market \xff\xfe\n\nwhat else\nbooted_at \n")
    first.with_suffix(".end").write_text("taken away: spot notice for i-1: terminate")
    second.with_suffix(".end").write_text("0")
    monkeypatch.setenv(VARIABLE, str(first))
    note_joined()
    note_joined()
    found = marks_of(folder)
    assert found["i-1"].kind == "g5.xlarge"
    assert (found["i-1"].booted_at, found["i-1"].prepared_at) == (12.0, None)
    assert first.read_text().count("joined_at") == 1
    assert found["i-2"].booted_at is None
    assert found["i-1"].ended_at is None
    assert found["i-2"].ended_at == second.with_suffix(".end").stat().st_mtime


_SLURM: dict[str, Any] = {
    "backend": "slurm",
    "kind": "gang",
    "nodes": 2,
    "threads_per_node": 8,
    "lifetime": 7200,
    "batch": {"gpus_per_node": 4, "gpu_type": "a100"},
}


def _lease(tmp_path: Path, **role: Any) -> LeaseFolder:
    """A gang whose job waited for 90 s and began at 100."""
    folder = LeaseFolder(tmp_path / "lease-1")
    folder.path.mkdir()
    write_lease(folder, run_id="run-1", role=Role(**_SLURM | role))
    for name in ("node-0", "node-1"):
        for event, at in (("began", 100.0), ("joined", 130.0)):
            line = NodeLine(event=event, name=name, at=at)  # type: ignore[arg-type]
            append_line(folder.nodes, line.model_dump_json())
    open_ledger().add_run(run_row())
    row = lease_row(folder=str(folder.path), created_at=10.0, backend="slurm")
    open_ledger().add_lease(row, max_active=4)
    return folder


@pytest.mark.usefixtures("headrace_home")
@pytest.mark.parametrize(
    ("state", "ended_at"), [(LeaseState.CLOSED, 3700.0), (LeaseState.LOST, 3700.0)]
)
def test_a_gang_in_a_queue_costs_what_the_site_says_and_its_wait_nothing(
    tmp_path: Path, state: LeaseState, ended_at: float
):
    """pains 37: whoever saw its end late does not count until then."""
    price = {"usd_per_gpu_hour": 2.0, "usd_per_core_hour": 0.25, "as_of": "2026-06-17"}
    folder = _lease(tmp_path, price=price)
    folder.heartbeat.write_text(f"{ended_at} 1.0\n")
    write_record(folder.closed, Ending(state=state, reason="x", at=ended_at + 9e4))
    lease = open_ledger().lease("lease-1")
    record_machines(lease)
    first, second = open_ledger().machines(run_id="run-1")
    assert (first.created_at, first.started_at, first.joined_at) == (10.0, 100.0, 130.0)
    assert (first.ended_at, first.billed_s, second.billed_s) == (ended_at, 3600.0, 3600.0)
    assert first.is_estimate is (state is LeaseState.LOST)
    assert (first.kind, first.usd_per_hour) == ("slurm 4 x a100", 4 * 2.0 + 8 * 0.25)
    assert (first.price_source, first.price_as_of) == ("site file", "2026-06-17")
    cost = run_cost("run-1")
    assert (cost.usd, cost.unpriced) == (20.0, 0)


@pytest.mark.usefixtures("headrace_home")
def test_without_a_price_time_is_counted_and_money_is_not_known(tmp_path: Path):
    _lease(tmp_path)
    record_machines(open_ledger().lease("lease-1"))
    rows = open_ledger().machines(run_id="run-1")
    assert [row.usd_per_hour for row in rows] == [None, None]
    assert (cost_of(rows, 4000.0).unpriced, run_cost("run-1")) == (2, None)


def test_a_lease_costs_its_whole_lifetime_at_most():
    most = most_cost(Role(**_SLURM, price={"usd_per_node_hour": 1.5, "source": "rate 2026"}))
    assert most.usd == 6.0
    assert most.why == "2 x 2:00:00 x $1.5 an hour of slurm 4 x a100, rate 2026"
    assert most_cost(Role(**_SLURM)) is None


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"price": {}}, "no rate is given; write `usd_per_node_hour`"),
        ({"price": {"usd_licences_per_node_hour": 1}}, "no rate is given"),
        ({"price": {"usd_per_node_hour": -1}}, "greater than or equal to 0"),
        ({"price": {"usd_per_gpu_hour": 1}}, "needs `batch.gpus_per_node`"),
        ({"price": {"usd_per_node_hour": 1, "as_of": "June"}}, "pattern"),
    ],
)
def test_prices_that_cannot_be_meant_are_refused(role: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Role(**role)
