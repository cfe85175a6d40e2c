"""How jobs end: why, and when one is given up whose host never reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.batch.job_records import JobState, JobStatus
from headrace.batch.queue_state import JobRecord
from headrace.batch.slurm import Slurm
from headrace.clusters import lease_machines
from headrace.clusters.lease_machines import overdue
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import SiteFolder
from headrace.recipe.site import Role
from headrace.states import FailureClass
from support.leases import lease_spec
from support.scripted_commands import SmallSlurm

LEFT_S = 100.0 + 15.0  # start_timeout and lost_after


@pytest.mark.parametrize(
    ("state", "log", "why"),
    [
        ("FAILED", "error: x: No such file or directory\n", "No such file or directory"),
        ("FAILED", "", "ended: failed"),
        ("PREEMPTED", "error: x: No such file or directory\n", "ended: preempted"),
    ],
)
def test_a_failed_job_tells_what_its_log_lacks(
    tmp_path: Path, state: str, log: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SmallSlurm()
    slurm.jobs["7"] = state
    monkeypatch.setattr(lease_machines, "system_of", lambda _: Slurm(slurm))
    folder = SiteFolder(tmp_path).lease("demo-1")
    write_record(folder.job, JobRecord(job_id="7", name="x", submitted_at=0.0))
    folder.log.write_text(log)
    found = lease_machines.cause(folder, lease_spec(folder, Role(backend="slurm")))
    assert found.why.endswith(why)


@pytest.mark.parametrize(
    ("since", "now", "has_host", "is_overdue"),
    [
        (1000.0, 1000.0 + LEFT_S, False, True),
        (100.0, 300.0, False, True),
        (1000.0, 999.0 + LEFT_S, False, False),
        (1000.0, 1000.0 + LEFT_S, True, False),
        (None, 1000.0 + LEFT_S, False, False),
    ],
)
def test_a_job_whose_host_never_reports(
    tmp_path: Path, since: float | None, now: float, has_host: bool, is_overdue: bool
) -> None:
    folder = SiteFolder(tmp_path).lease("demo-1")
    if has_host:
        write_text(folder.host, "{}")
    spec = lease_spec(folder, Role(start_timeout=100.0))
    status = JobStatus(
        job_id="7", state=JobState.RUNNING, running_since=since, nodes=("n1", "n2"), seen_at=now
    )
    found = overdue(status, folder, spec, "Slurm")
    assert (found is not None) == is_overdue
    if found is not None:
        assert found.why.startswith("Slurm job 7 has been running on n1, n2 for more than 115 s")
        assert (found.failure_class, found.bad_nodes) == (FailureClass.INFRASTRUCTURE, ("n1",))
