"""The command lines of mpirun and srun that start all ranks of all nodes; pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from headrace.recipe.site import Role
from headrace.training.records import NodeReady

_NO_QUEUE = "^slurm,tm,lsf,gridengine"


def launcher_command(
    nodes: Sequence[NodeReady], role: Role, variables: Iterable[str]
) -> tuple[str, ...]:
    """The command, to be run on the first node.

    Args:
        nodes: All nodes, the first one first.
        role: The site's role that trains; its `launcher` is one that starts all ranks.
        variables: Names of the first node's environment variables; ranks on other nodes get
            those of headrace and the module path.
    """
    rank = (
        sys.executable,
        "-u",
        "-m",
        "headrace.training.mpi_rank",
        str(nodes[0].launch.folder.path),
    )
    return (
        *_COMMANDS[str(role.launcher)](nodes, role, sorted(variables)),
        *role.launcher_options,
        *rank,
    )


def _mpirun(nodes: Sequence[NodeReady], role: Role, variables: Sequence[str]) -> tuple[str, ...]:
    # https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php
    launch = nodes[0].launch
    hosts = ",".join(f"{node.launch.host}:{launch.ranks_per_node}" for node in nodes)
    passed = [name for name in variables if name == "PYTHONPATH" or name.startswith("HEADRACE")]
    return (
        "mpirun", "-np", str(launch.world_size), "--host", hosts, "--map-by", "slot",
        "--bind-to", "none",
        # inside a batch job too, the hosts named here count, and the lease's workers have all slots
        "--mca", "ras", _NO_QUEUE, "--mca", "plm", _NO_QUEUE,
        *(word for name in passed for word in ("-x", name)),
    )  # fmt: skip


def _srun(nodes: Sequence[NodeReady], role: Role, variables: Sequence[str]) -> tuple[str, ...]:
    # https://slurm.schedmd.com/srun.html
    del variables  # srun passes all of them on
    launch = nodes[0].launch
    return (
        "srun",
        "--overlap",  # the job step of the lease's workers has all of the nodes
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(node.slurm_name for node in nodes)}",
        f"--ntasks={launch.world_size}",
        f"--ntasks-per-node={launch.ranks_per_node}",
        f"--cpus-per-task={role.threads_per_rank}",
        "--distribution=block",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--export=ALL",
    )


_COMMANDS: dict[str, Callable[[Sequence[NodeReady], Role, Sequence[str]], tuple[str, ...]]] = {
    "mpirun": _mpirun,
    "srun": _srun,
}
