"""Machines at the site's own price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.clusters.lease_records import Ending, LeaseSpec
from headrace.clusters.node_marks import NodeLine
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Role
from headrace.runs.costs import cost_of, run_cost
from headrace.runs.machine_records import record_machines
from headrace.runs.site_machines import most_cost
from headrace.states import LeaseState
from support.ledger_rows import lease_row, run_row

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
    spec = LeaseSpec(
        lease_id="lease-1", key="k", run_id="run-1", role_name="gpu", role=Role(**_SLURM | role)
    )
    write_record(folder.spec, spec)
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
