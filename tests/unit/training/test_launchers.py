"""Ranks that mpirun or srun starts: whole command lines, and what ranks learn of their place."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.errors import StepError
from headrace.processes.working_folder import python_module
from headrace.recipe.site import Role
from headrace.training.launch import LaunchedRank, launcher_command, placement
from headrace.training.launch_records import NodeReady
from support.training import make_launch

_RANK = python_module("headrace.training.mpi")
_FOLDER = "/leases/l1/steps/000003/parts/launch-002"


def node(index: int) -> NodeReady:
    launch = make_launch(
        step_folder="/leases/l1/steps/000003", number=2, node_index=index, num_nodes=2,
        ranks_per_node=2, host=f"10.0.0.{index + 1}",
    )  # fmt: skip
    return NodeReady(launch=launch, dataset="/shm/d", fingerprint="", slurm_name=f"n{index}")


NODES = [node(0), node(1)]
ENVIRONMENT = ["HOME", "HEADRACE_LEASE", "PYTHONPATH"]


def test_the_command_of_mpirun():
    role = Role(launcher="mpirun", launcher_options=("--tag-output",))
    assert launcher_command(NODES, role, ENVIRONMENT) == (
        "mpirun", "-np", "4", "--host", "10.0.0.1:2,10.0.0.2:2", "--map-by", "slot",
        "--bind-to", "none", "--mca", "ras", "^slurm,tm,lsf,gridengine",
        "--mca", "plm", "^slurm,tm,lsf,gridengine", "-x", "HEADRACE_LEASE", "-x", "PYTHONPATH",
        "--tag-output", *_RANK, _FOLDER,
    )  # fmt: skip


def test_the_command_of_srun():
    role = Role(
        backend="slurm", kind="gang", nodes=2, threads_per_rank=3, launcher="srun",
        launcher_options=("--mpi=pmix",),
    )  # fmt: skip
    assert launcher_command(NODES, role, ENVIRONMENT) == (
        "srun", "--overlap", "--nodes=2", "--nodelist=n0,n1", "--ntasks=4",
        "--ntasks-per-node=2", "--cpus-per-task=3", "--distribution=block", "--cpu-bind=none",
        "--kill-on-bad-exit=1", "--export=ALL", "--mpi=pmix", *_RANK, _FOLDER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"launcher": "srun"}, "launcher 'srun' needs backend 'slurm'"),
        ({"launcher_options": ("-v",)}, "`launcher_options` are for a `launcher`"),
        (
            {
                "backend": "slurm", "kind": "gang", "launcher": "srun",
                "batch": {"container": {"runtime": "apptainer", "image": "/i.sif"}},
            },
            "'srun' starts no ranks in a container",
        ),
    ],
)  # fmt: skip
def test_a_role_whose_launcher_cannot_work_is_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        Role(**options)


_SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "local_rank"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                **_SLURM,  # of the job step in which mpirun was called
            },
            3, 4, 1,
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", **_SLURM}, 2, 4, 0),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4, None),
        ({"PMIX_RANK": "1", **_SLURM}, 1, 2, 0),
        ({"PMIX_RANK": "1"}, 1, None, None),
        (_SLURM, 1, 2, 0),
    ],
)  # fmt: skip
def test_ranks_learn_their_place_from_the_launcher(environment, rank, world_size, local_rank):
    expected = LaunchedRank(rank=rank, world_size=world_size, local_rank=local_rank)
    assert placement(environment) == expected


def test_a_rank_that_no_launcher_has_started_says_so():
    with pytest.raises(StepError, match="none of OMPI_COMM_WORLD_RANK, PMI_RANK"):
        placement({"RANK": "0"})
