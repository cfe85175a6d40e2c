"""The table of leases."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from headrace.cli.lease_view import summary
from headrace.leases.overview import LeaseView
from headrace.states import LeaseState

WAITS = "Slurm job 7 is pending: Resources, expected 14:05 CET"


def test_a_lease_in_a_queue_tells_what_it_waits_for():
    view = LeaseView(
        lease_id="run-gpu-1",
        run_id="run",
        role="gpu",
        kind="gang",
        state=LeaseState.STARTING,
        nodes=2,
        age_s=60.0,
        idle_s=None,
        num_steps=0,
        num_running=0,
        dashboard_url="",
        folder="/leases/run-gpu-1",
        waits_for=WAITS,
        why_ended="",
    )
    console = Console(file=StringIO(), width=200)
    console.print(summary([view]))
    assert WAITS in console.file.getvalue()
