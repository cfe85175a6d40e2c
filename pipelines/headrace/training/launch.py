"""The commands and environments of ranks, and of mpirun and srun where those start them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.errors import StepError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import RunFolder, StepFolder
from headrace.processes.children import Child
from headrace.processes.working_folder import CODE, FOLDER
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.steps.mailbox import StepSpec
from headrace.steps.model_process import model_environment, python_module
from headrace.steps.networks import network_environment
from headrace.training.launch_records import NodeLaunch, NodeReady
from headrace.training.script_command import script_command, tensorflow_config

_PASSED = ("PYTHONPATH", "USER")
_NO_QUEUE = "^slurm,tm,lsf,gridengine"


def rank_name(rank: int) -> str:
    """Name of a rank's process."""
    return f"rank {rank}"


def rank_children(node: NodeReady, recipe: Recipe, role: Role) -> tuple[Child, ...]:
    """The processes of a node's ranks, by the recipe, for the site's role that trains."""
    launch = node.launch
    logs = StepFolder(Path(launch.step_folder)).logs
    return tuple(
        Child(
            name=rank_name(rank),
            command=_command(node, recipe, rank),
            env={
                **network_environment(node.interface),
                **model_environment(role),
                **torchrun_environment(launch, rank, recipe.train.max_restarts),
                **profiler_environment(launch, role, rank),
                **(script_environment(node, recipe) if recipe.train.is_script else {}),
                **(tensorflow_config(launch, rank) if recipe.train.is_script else {}),
            },
            log=logs / f"rank-{rank}.log",
        )
        for rank in launch.ranks
    )


def alone(run: RunFolder) -> NodeReady:
    """Write the files of a launch of one rank on this machine, for a run with recipe and site."""
    step = StepFolder(run.path / "step")
    launch = NodeLaunch(
        run_folder=str(run.path), step_folder=str(step.path), dataset="", number=1,
        node_name="localhost", host="127.0.0.1", master_address="127.0.0.1", resume=None,
    )  # fmt: skip
    for each in (launch.folder.path, step.logs, run.checkpoints):
        each.mkdir(parents=True, exist_ok=True)
    spec = {"key": "alone", "kind": "train", "run_id": run.run_id, "name": "train", "attempt": 1}
    write_record(step.spec, StepSpec(**spec, run_folder=str(run.path)))
    node = NodeReady(launch=launch, dataset=str(run.path / "dataset"), fingerprint="")
    write_record(launch.folder.ready(0), node)
    return node


def torchrun_environment(launch: NodeLaunch, rank: int, max_restarts: int) -> dict[str, str]:
    """The variables that torchrun gives a rank.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    world_size = str(launch.world_size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - launch.ranks.start),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(launch.ranks_per_node),
        "LOCAL_SIZE": str(launch.ranks_per_node),  # as DeepSpeed's launcher names it
        "GROUP_RANK": str(launch.node_index),
        "GROUP_WORLD_SIZE": str(launch.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
        "TORCHELASTIC_RUN_ID": Path(launch.run_folder).name,
        "TORCHELASTIC_RESTART_COUNT": str(launch.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def profiler_environment(launch: NodeLaunch, role: Role, rank: int) -> dict[str, str]:
    """Have `line_profiler` write into the run's folder, by rank, if `LINE_PROFILE` turns it on.

    Side effects: writes its configuration into the launch's folder.
    """
    if not {**os.environ, **role.env}.get("LINE_PROFILE") or "LINE_PROFILER_RC" in os.environ:
        return {}
    file = launch.folder.path / f"line-profiler-{rank}.toml"
    prefix = json.dumps(f"{launch.run_folder}/lines-of-rank-{rank}")
    write_text(file, f"[tool.line_profiler.write]\noutput_prefix = {prefix}\n")
    return {"LINE_PROFILER_RC": str(file)}


def _command(node: NodeReady, recipe: Recipe, rank: int) -> tuple[str, ...]:
    if recipe.train.is_script:
        return python_module("headrace.processes", "--", *script_command(node, recipe, rank))
    ready = node.launch.folder.ready(node.launch.node_index)
    return python_module("headrace.training.rank", str(ready), str(rank))


def script_environment(node: NodeReady, recipe: Recipe) -> dict[str, str]:
    """Return the environment variables of a script; `HEADRACE_LAUNCH` is for `headrace.script`."""
    launch, train = node.launch, recipe.train
    run = RunFolder(Path(launch.run_folder))
    folders = [*recipe.code, *([train.folder or str(run.work)] if train.module else [])]
    return {
        **({"HEADRACE_DATASET": node.dataset} if node.dataset else {}),
        **({CODE: os.pathsep.join(map(os.path.expanduser, folders))} if folders else {}),
        "HEADRACE_CHECKPOINTS": str(run.checkpoints),
        "HEADRACE_RUN_FOLDER": str(run.path),
        "HEADRACE_SEED": str(recipe.seed),
        FOLDER: os.path.expanduser(train.folder or run.work),
        "HEADRACE_LAUNCH": str(launch.folder.ready(launch.node_index)),
        **({"HEADRACE_RESUME": launch.resume} if launch.resume else {}),
        **({"HEADRACE_STOP_AT": f"{launch.stop_at:.0f}"} if launch.stop_at else {}),
        **({"HEADRACE_NOTICE": launch.notice} if launch.notice else {}),
    }


def launcher_command(
    nodes: Sequence[NodeReady], role: Role, variables: Iterable[str], rank: Sequence[str]
) -> tuple[str, ...]:
    """The command that starts the command `rank` for all ranks of all nodes, from the first node.

    `variables` are names of its environment variables: ranks on other nodes get those of headrace,
    the module path and the user's name.
    """
    command = _COMMANDS[str(role.launcher)](nodes, role, sorted(variables))
    return (*command, *role.launcher_options, *rank)


def _mpirun(nodes: Sequence[NodeReady], role: Role, variables: Sequence[str]) -> tuple[str, ...]:
    # https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php
    launch = nodes[0].launch
    hosts = ",".join(f"{node.launch.host}:{launch.ranks_per_node}" for node in nodes)
    passed = [name for name in variables if name in _PASSED or name.startswith("HEADRACE")]
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


class LaunchedRank(NamedTuple):
    """A process's place as its launcher reports it; None if not reported."""

    rank: int
    world_size: int | None
    local_rank: int | None


_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""Rank, world size and local rank. Slurm's come last: mpirun inside a Slurm job leaves them as they
were. Sources: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html,
https://slurm.schedmd.com/srun.html, PMI_* and MPI_LOCALRANKID of Hydra (MPICH, Intel MPI)."""


def placement(environment: Mapping[str, str]) -> LaunchedRank:
    """The place of the process with that environment."""
    for rank, world_size, local_rank in _VARIABLES:
        if rank in environment:
            return LaunchedRank(
                rank=int(environment[rank]),
                world_size=_number(environment.get(world_size)),
                local_rank=_number(environment.get(local_rank)),
            )
    names = ", ".join(names[0] for names in _VARIABLES)
    raise StepError(
        f"The launcher of this rank has set none of {names}",
        "Set the role's `launcher` to one that does, or leave it out.",
    )


def _number(text: str | None) -> int | None:
    return int(text) if text else None
