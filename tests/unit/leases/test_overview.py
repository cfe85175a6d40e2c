"""What a lease on disk is told to be."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.files.atomic import write_record, write_text
from headrace.files.layout import SiteFolder
from headrace.leases.lease_status import write_heartbeat
from headrace.leases.overview import view
from headrace.leases.records import HostRecord, LeaseInfo
from headrace.processes import ProcessIdentity
from headrace.recipe.site import Role
from headrace.states import LeaseState
from support.leases import lease_spec


def test_a_ready_lease_tells_its_dashboard_and_since_when_it_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    folder = SiteFolder(tmp_path).lease("demo-1")
    write_record(folder.spec, lease_spec(folder, Role()))
    assert (view(folder).state, view(folder).dashboard_url) == (LeaseState.STARTING, "")
    host, url = ProcessIdentity.of(), "http://127.0.0.1:2"
    write_record(folder.host, HostRecord(process=host))
    write_heartbeat(folder)
    info = LeaseInfo(
        lease_id=folder.lease_id, backend="local", host=host, scheduler_address="",
        dashboard_url=url, nodes=1, ready_at=time.time() - 60,
    )  # fmt: skip
    write_record(folder.info, info)
    seen = view(folder)
    assert (seen.state, seen.dashboard_url, seen.num_running) == (LeaseState.READY, url, 0)
    assert seen.idle_s is not None
    assert 60 <= seen.idle_s < 3600
    write_text(folder.step(1).spec, "{}")
    seen = view(folder)
    assert (seen.num_steps, seen.num_running, seen.idle_s) == (1, 1, None)
