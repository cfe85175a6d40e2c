"""Scripts of the jobs of a pool."""

from __future__ import annotations

from headrace.batch.system import BatchSystem
from headrace.clusters.lease_machines import NodeRequest, node_job
from headrace.clusters.pool_job import PoolJob
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from support.leases import lease_spec
from support.scripted_commands import ScriptedCommands

MODULE = """\
command -v module > /dev/null || module() {
    local path=$PATH
    unset -f module
    . /etc/profile || true
    PATH=$path:$PATH
    command -v module > /dev/null || {
        echo "module: command not found, nor defined by /etc/profile: source the file that" \\
            "defines it in batch.prologue of the role, and load the modules there"
        return 127
    }
    module "$@"
}
"""
"""Text of a job that loads modules or has a prologue."""


def assert_dask_jobqueue_shows_the_script(system: type[BatchSystem], folder: LeaseFolder) -> None:
    """What dask-jobqueue shows as its script is what the batch system gets."""
    role = Role(backend="slurm", nodes=4, lifetime="1h")
    request = NodeRequest(serial=1, number=0, time_limit_s=90.0)
    spec = node_job(folder, lease_spec(folder, role), request)
    script = system(ScriptedCommands()).render(spec)
    job = PoolJob("tls://127.0.0.1:1", "node-0", request=request, spec=spec, script=script)
    shown = [line for line in job.job_script().splitlines() if line]
    assert shown == script.splitlines()
    assert "headrace.clusters.worker" in shown[-1]
    assert len(job.job_header.splitlines()) > 5
