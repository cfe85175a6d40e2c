"""The table of leases."""

from __future__ import annotations

import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.cli.leases import _COLUMNS, _details
from headrace.cli.listing import Listing
from headrace.clusters.lease_records import AvoidedNode
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.states import EndedJob, LeaseState
from headrace.status.lease import LeaseView
from support.leases import lease_spec

WAITS = "Slurm job 7 is pending: Resources, expected 14:05 CET"


def test_a_lease_in_a_queue_tells_what_it_waits_for():
    console = Console(file=StringIO(), width=200)
    console.print(Listing.of([_view(waits_for=WAITS)], *_COLUMNS))
    assert WAITS in console.file.getvalue()


def test_ids_and_paths_can_be_copied_from_a_narrow_terminal():
    ids = [f"mnist-20261121-20383{number}-7bd79f6b-gpu-1" for number in range(2)]
    console = Console(file=StringIO(), width=80)
    views = [_view(lease_id=name, why_ended="run ended") for name in ids]
    console.print(Listing.of(views, *_COLUMNS))
    assert all(name in console.file.getvalue() for name in ids)
    folder = "/shared/a-project-with-a-long-name/" + "headrace/" * 6 + ids[0]
    spec = lease_spec(LeaseFolder(Path(folder)), Role())
    console.print(_details(_view(folder=folder), spec, None, ()))
    assert f"{folder}/host.log" in re.sub(r"\s", "", console.file.getvalue())


def test_a_pool_tells_which_nodes_it_avoids_and_how_jobs_ended():
    avoided = AvoidedNode(node="n7", why="2 jobs ended badly there: node failed")
    ended = EndedJob(node="node-0", job_id="11", host="n7", why="Slurm job 11 ended: node failed")
    view = _view(kind="pool", bad_nodes=("n7",), avoids=(avoided,), ended=(ended,), takes_all="no")
    console = Console(file=StringIO(), width=200)
    spec = lease_spec(LeaseFolder(Path("/leases/run-gpu-1")), Role(kind="pool"))
    console.print(_details(view, spec, None, ()))
    told = console.file.getvalue()
    assert "n7: 2 jobs ended badly there: node failed" in told
    assert "also bad ones: no" in told
    assert re.search(r"node-0 +11 +n7 +.+ ago +Slurm job 11 ended: node failed", told)


def _view(**changes: Any) -> LeaseView:
    view = LeaseView(
        lease_id="run-gpu-1",
        run_id="run",
        role="gpu",
        kind="gang",
        state=LeaseState.STARTING,
        nodes=2,
        nodes_here=0,
        created_at=time.time() - 60.0,
        num_steps=0,
        num_running=0,
        dashboard_url="",
        folder="/leases/run-gpu-1",
        waits_for="",
        why_ended="",
    )
    return view.model_copy(update=changes)
