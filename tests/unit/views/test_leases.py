"""The page of leases: open ones first, then the last that ended."""

from __future__ import annotations

from dataclasses import asdict

from headrace.clusters.lease_records import LeaseInfo
from headrace.clusters.lease_state import write_heartbeat
from headrace.clusters.node_marks import NodeLine
from headrace.files.atomic import write_record
from headrace.files.lines import append_line
from headrace.ledger.database import Database, default_url
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import LeaseState
from headrace.views.leases import LeaseRow, leases_page
from support.ledger_rows import lease_row, machine_row
from support.runs import lease_on_disk, make_run


def rows(*, can_act: bool = True) -> dict[str, LeaseRow]:
    return {row.lease_id: row for row in leases_page(can_act=can_act).rows}


def ready(run: Run) -> str:
    """A pool whose host is this process, with one of its nodes."""
    lease_id = lease_on_disk(run, "cpu", ProcessIdentity.of())
    folder = run.lease_folder(lease_id)
    info = LeaseInfo(
        lease_id=lease_id, backend="local", host=ProcessIdentity.of(), nodes=2, ready_at=1.0,
        scheduler_address="tls://127.0.0.1:1", dashboard_url="http://127.0.0.1:8787",
    )  # fmt: skip
    write_record(folder.info, info)
    for event in ("began", "joined"):
        append_line(folder.nodes, NodeLine(event=event, name="node-0", at=1.0).model_dump_json())
    write_heartbeat(folder)
    return lease_id


def test_an_open_lease_tells_its_nodes_address_and_price():
    lease_id = ready(make_run())
    open_ledger().put_machines([machine_row(lease_id=lease_id, usd_per_hour=1.5)])
    row = rows()[lease_id]
    assert (row.state, row.kind, row.nodes_here) == (LeaseState.READY, "pool", 1)
    assert row.has_dashboard
    assert row.usd_per_hour == 1.5
    assert row.idle_s is not None
    assert row.can_close
    assert not rows(can_act=False)[lease_id].can_close


def test_one_that_has_ended_comes_last_and_cannot_be_closed():
    run = make_run()
    first = lease_on_disk(run, "gpu")
    open_ledger().set_lease_state(first, LeaseState.CLOSED, ended_at=2.0, why_ended="done")
    second = ready(run)
    assert [row.lease_id for row in leases_page(can_act=True).rows] == [second, first]
    ended = rows()[first]
    assert (ended.state, ended.why_ended, ended.can_close) == (LeaseState.CLOSED, "done", False)


def test_the_last_that_ended_are_there_however_many_are_open():
    run = make_run()
    gone = lease_on_disk(run, "gpu")
    open_ledger().set_lease_state(gone, LeaseState.CLOSED, ended_at=2.0, why_ended="done")
    later = [lease_row(f"lease-{n}", run_id=run.run_id, created_at=9e9) for n in range(1000)]
    database = Database(default_url())
    with database.write() as session:
        database.put(session, LeaseRecord.__table__, [asdict(row) for row in later])
    assert [row.lease_id for row in leases_page(can_act=True).rows][1000:] == [gone]


def test_one_whose_folder_is_damaged_is_listed_all_the_same():
    run = make_run()
    lease_id = lease_on_disk(run)
    run.lease_folder(lease_id).spec.write_text("{")
    assert "does not hold a LeaseSpec" in rows()[lease_id].waits_for
