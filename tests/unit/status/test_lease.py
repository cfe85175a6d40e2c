"""How leases stand, and the page of them: open ones first, then the last that ended."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import HostRecord, PoolJobView, PoolRecord
from headrace.clusters.node_marks import NodeLine
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import SiteFolder
from headrace.files.lines import append_line
from headrace.ledger.database import Database, default_url
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role
from headrace.runs.runs import Run
from headrace.states import LeaseState
from headrace.status.lease import LeaseView, lease_view, leases_page, look_lease, site_leases
from headrace.status.run_page import run_page
from support.factories import demo_info
from support.leases import lease_spec
from support.ledger_rows import lease_row, machine_row
from support.runs import lease_on_disk, make_run


def rows() -> dict[str, LeaseView]:
    return {row.lease_id: row for row in leases_page(can_act=True).rows}


def ready(run: Run) -> str:
    """A pool whose host is this process, with one of its nodes."""
    lease_id = lease_on_disk(run, "cpu", ProcessIdentity.of())
    folder = run.lease_folder(lease_id)
    info = demo_info(lease_id, nodes=2, dashboard_url="http://127.0.0.1:8787")
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
    assert leases_page(can_act=True).can_act
    assert not leases_page(can_act=False).can_act


def test_pages_never_get_the_secret_link_of_a_dashboard_nor_where_a_lease_lies():
    """Whoever has the link needs no login: pages open the dashboard by a ticket."""
    run = make_run()
    lease_id = ready(run)
    told = (
        leases_page(can_act=True).model_dump_json()
        + run_page(run.run_id, can_act=True).model_dump_json()
    )
    assert lease_id in told
    assert "8787" not in told
    assert str(run.lease_folder(lease_id).path) not in leases_page(can_act=True).model_dump_json()


def test_one_that_has_ended_comes_last():
    run = make_run()
    first = lease_on_disk(run, "gpu")
    open_ledger().set_lease_state(first, LeaseState.CLOSED, ended_at=2.0, why_ended="done")
    second = ready(run)
    assert [row.lease_id for row in leases_page(can_act=True).rows] == [second, first]
    ended = rows()[first]
    assert (ended.state, ended.why_ended) == (LeaseState.CLOSED, "done")


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
    assert "does not hold a LeaseSpec" in rows()[lease_id].damage


def test_a_ready_lease_tells_its_dashboard_and_since_when_it_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    folder = SiteFolder(tmp_path).lease("demo-1")
    write_record(folder.spec, lease_spec(folder, Role()))
    assert (lease_view(folder).state, lease_view(folder).dashboard_url) == (LeaseState.STARTING, "")
    assert lease_view(folder).nodes_here == 0
    host, url = ProcessIdentity.of(), "http://127.0.0.1:2"
    write_record(folder.host, HostRecord(process=host))
    write_heartbeat(folder)
    info = demo_info(folder.lease_id, host=host, dashboard_url=url, ready_at=time.time() - 60)
    write_record(folder.info, info)
    seen = lease_view(folder)
    assert (seen.state, seen.dashboard_url, seen.num_running) == (LeaseState.READY, url, 0)
    assert (seen.nodes_here, seen.nodes) == (1, 1)
    assert seen.idle_s is not None
    assert 60 <= seen.idle_s < 3600
    write_text(folder.step(1).spec, "{}")
    seen = lease_view(folder)
    assert (seen.num_steps, seen.num_running, seen.idle_s) == (1, 1, None)
    jobs = [
        PoolJobView(node=f"node-{number}", job_id=str(number), stage=stage, why="")
        for number, stage in enumerate(("busy", "idle", "starting", "queued", "leaving"))
    ]
    write_record(folder.pool, PoolRecord(jobs=tuple(jobs)))
    assert lease_view(folder).nodes_here == 2


def test_a_lease_that_nobody_can_read_keeps_no_other_from_being_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = SiteFolder(tmp_path)
    write_text(site.lease("b").spec, '{"lease_id": "b", "a field of tomorrow": 1}')
    write_record(site.lease("c").spec, lease_spec(site.lease("c"), Role()))
    write_text(site.lease("c").heartbeat, "1.0 1.0")
    assert [each.lease_id for each in site_leases(site, ended=True)] == ["c"]
    assert "Lease b is passed over" in caplog.text


_opened: list[Path] = []
"""Files that this process has opened since the list was cleared."""


def _note_open(event: str, details: tuple[object, ...]) -> None:
    if event == "open" and isinstance(details[0], str):
        _opened.append(Path(details[0]))


@pytest.fixture(scope="module")
def opened() -> list[Path]:
    """The audit hook stays as long as the process."""
    sys.addaudithook(_note_open)
    return _opened


@pytest.mark.parametrize("has_queue", [True, False])
def test_a_lease_is_read_in_one_pass(opened: list[Path], has_queue: bool):
    """A terminal looks four times a second, and each open of a file is a question to NFS."""
    run = make_run()
    folder = run.lease_folder(ready(run))
    if has_queue:
        write_record(folder.pool, PoolRecord())
    for read in (look_lease, lease_view):
        opened.clear()
        assert read(folder).state is LeaseState.READY
        files = [path.name for path in opened if path.parent == folder.path and not path.is_dir()]
        assert len(files) == len(set(files)) <= 6, files
