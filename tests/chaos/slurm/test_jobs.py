"""Jobs of leases that Slurm, or a node, does not treat as they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.batch.queue_state import JobRecord
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import FailureClass, LeaseState
from headrace.status.lease import lease_view
from support.leases import lease_spec, opened, wait_for_state
from support.slurm_dev import LEAVING_S, DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_BATCH: dict[str, Any] = {"interface": "lo", "poll": 0.2}
_NODE: dict[str, Any] = {"backend": "slurm", "kind": "gang", "lifetime": 600}


def _job_id(folder: LeaseFolder) -> str:
    record = read_record(folder.job, JobRecord)
    return record.job_id


def test_a_host_that_never_reports_is_given_up_and_its_node_is_left_out(
    tmp_path: Path, slurm: DevSlurm
):
    """pains 34: not at the end of the job's time limit, but soon after the job has started."""
    role = Role(**_NODE, start_timeout=0.5, batch={**_BATCH, "prologue": ("exec sleep 100",)})
    folder = SiteFolder(tmp_path).lease("silent-1")
    lease_client.start(folder, lease_spec(folder, role).model_copy(update={"lost_after_s": 1.0}))
    wait_until(
        lambda: LeaseFiles.read(folder).state(1.0) is LeaseState.LOST, 120, "it to be given up"
    )
    (node,) = slurm.nodes_of(_job_id(folder))
    assert f"running on {node} for more than" in LeaseFiles.read(folder).why_ended
    cause = lease_client.cause(folder)
    assert cause.failure_class is FailureClass.INFRASTRUCTURE
    lease_client.end(folder)
    assert lease_view(folder).bad_nodes == (node,)
    another = SiteFolder(tmp_path).lease("silent-2")
    spec = lease_spec(another, role).model_copy(update={"exclude": (node,)})
    lease_client.start(another, spec)
    wait_until(lambda: slurm.nodes_of(_job_id(another)), 120, "the job to start", poll_s=0.3)
    assert slurm.nodes_of(_job_id(another)) != [node]
    lease_client.end(another)


def test_where_all_nodes_are_bad_they_are_taken_all_the_same(tmp_path: Path, slurm: DevSlurm):
    role = Role(**_NODE, batch={**_BATCH, "prologue": ("exec sleep 100",)})
    folder = SiteFolder(tmp_path).lease("desperate-1")
    spec = lease_spec(folder, role).model_copy(update={"exclude": slurm.shape.node_names})
    lease_client.start(folder, spec)
    wait_until(lambda: slurm.nodes_of(_job_id(folder)), 120, "the job to start", poll_s=0.3)
    lease_client.end(folder)


def test_a_job_that_slurm_puts_back_into_the_queue_is_cancelled_and_told_of(
    tmp_path: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch
):
    """pains 32: a second layer that starts jobs again; never two hosts in one lease."""
    monkeypatch.setenv("SBATCH_REQUEUE", "1")
    folder = opened(tmp_path, Role(**_NODE, batch=_BATCH), lease_id="again-1")
    job_id = _job_id(folder)
    slurm.run("scontrol", "requeue", job_id)

    def put_back() -> bool:
        return slurm.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T") == "PENDING\n"

    wait_until(put_back, 120, "the job to be in the queue again", poll_s=0.3)
    cause = lease_client.cause(folder)
    assert "put it back into the queue" in cause.why
    assert cause.failure_class.is_retried
    lease_client.end(folder)
    wait_until(lambda: not slurm.queue(), LEAVING_S, "an empty queue", poll_s=0.5)


def test_a_second_start_of_a_job_ends_at_once(tmp_path: Path, slurm: DevSlurm):
    """pains 32: also when Slurm is quicker than whoever would cancel it."""
    folder = opened(tmp_path, Role(**_NODE, batch=_BATCH), lease_id="twice-1")
    first = folder.host.read_text()
    host = read_record(folder.host, HostRecord)
    psutil.Process(host.process.pid).kill()
    wait_for_state(folder, LeaseState.LOST, 120)
    slurm.run("sbatch", "--nodes=1", f"--output={tmp_path}/second.log", str(_script(folder, slurm)))
    wait_until(folder.closed.exists, 120, "the second start to end")
    assert folder.host.read_text() == first
    assert "started the job a second time" in LeaseFiles.read(folder).why_ended


def _script(folder: LeaseFolder, slurm: DevSlurm) -> Path:
    """The lease's script, as Slurm keeps it."""
    file = folder.path / "again.sh"
    slurm.run("scontrol", "write", "batch_script", _job_id(folder), str(file))
    return file
