"""Commands and environments of ranks as whole texts; GPUs that a training claims."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.clusters.gpu_reservations import FOLDER, ReservationFile
from headrace.errors import StepCancelledError, StepError
from headrace.files.atomic import write_marker
from headrace.files.layout import StepFolder
from headrace.processes.identity import MEMORY
from headrace.processes.working_folder import python_module
from headrace.recipe.batch import Batch
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role
from headrace.steps.model_process import VARYING
from headrace.steps.networks import interface_of
from headrace.training.launch import (
    LaunchedRank,
    launcher_command,
    placement,
    rank_children,
    torchrun_environment,
)
from headrace.training.launch_records import NodeLaunch, NodeReady
from headrace.training.own_gpus import own_gpus
from support.training import make_launch, make_recipe

LAUNCH = make_launch(
    run_folder="/runs/r1", step_folder="/leases/l1/steps/000003", number=2, node_index=1,
    num_nodes=2, ranks_per_node=2, host="10.0.0.2", master_address="10.0.0.1", master_port=4711,
)  # fmt: skip
NODE = NodeReady(launch=LAUNCH, dataset="/shm/d", fingerprint="")
ROLE = Role(nodes=2, ranks_per_node=2, threads_per_rank=3, env={"WORD": "yes"})


def test_ranks_get_what_torchrun_would_give_them():
    recipe = make_recipe({"model": {"_target_": "a.B"}})
    first, second = rank_children(NODE.model_copy(update={"interface": "eth1"}), recipe, ROLE)
    assert first.name == "rank 2"
    node = "/leases/l1/steps/000003/parts/launch-002/node-1.json"
    assert first.command == python_module("headrace.training.rank", node, "2")
    assert str(first.log) == "/leases/l1/steps/000003/logs/rank-2.log"
    assert dict(second.env) == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "eth1",
        "WORD": "yes",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "r1",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "3",
    }


def test_ranks_differ_in_nothing_but_what_torchrun_gives_them():
    """Ranks of one launch, and of the next one, are forked from one process."""
    assert set(torchrun_environment(LAUNCH, 3, 3)) < VARYING
    other = LAUNCH.model_copy(update={"number": 3})  # temporary files are of one launch alone
    assert LAUNCH.token == LAUNCH.model_copy(update={"node_index": 0}).token != other.token


def test_scripts_learn_where_data_and_checkpoints_lie():
    train = {"script": "/code/train.py", "args": ["--fast"]}
    recipe = make_recipe({"train": train})
    first, _ = rank_children(NODE, recipe, ROLE)
    script = (sys.executable, "-u", "/code/train.py", "--fast")
    assert first.command == python_module("headrace.processes", "--", *script)
    assert first.env["HEADRACE_DATASET"] == "/shm/d"
    assert first.env["HEADRACE_CHECKPOINTS"] == "/runs/r1/checkpoints"
    assert first.env["HEADRACE_RUN_FOLDER"] == "/runs/r1"
    assert first.env["HEADRACE_SEED"] == "0"
    assert "HEADRACE_RESUME" not in first.env
    assert "GLOO_SOCKET_IFNAME" not in first.env


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.0.0.2", "eth1"), ("fe80::1", "eth0"), ("10.9.9.9", None), ("node-1", None)],
)
def test_the_interface_is_that_of_the_nodes_address(address, interface):
    """Pains 33: never by the host's name, which may resolve to localhost."""
    interfaces = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1", "fe80::1%eth0"], "eth1": ["10.0.0.2"]}
    assert interface_of(address, interfaces) == interface


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
    assert launcher_command(NODES, role, ENVIRONMENT, (*_RANK, _FOLDER)) == (
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
    assert launcher_command(NODES, role, ENVIRONMENT, (*_RANK, _FOLDER)) == (
        "srun", "--overlap", "--nodes=2", "--nodelist=n0,n1", "--ntasks=4",
        "--ntasks-per-node=2", "--cpus-per-task=3", "--distribution=block", "--cpu-bind=none",
        "--kill-on-bad-exit=1", "--export=ALL", "--mpi=pmix", *_RANK, _FOLDER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"launcher": "srun"}, "launcher 'srun' needs backend 'slurm'"),
        ({"launcher_options": ("-v",)}, "`launcher_options` are for a `launcher`"),
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


MASK = "CUDA_VISIBLE_DEVICES"
TWO_RANKS = Role(ranks_per_node=2)
AUTO = ("trainer.accelerator=auto",)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "claims"))
    monkeypatch.setenv(MASK, "GPU-a,GPU-b")


def launch(folder: Path, num_nodes: int = 1) -> NodeLaunch:
    (folder / "step").mkdir(exist_ok=True)
    run = str(folder / "run-1")
    return make_launch(folder, run_folder=run, num_nodes=num_nodes, ranks_per_node=2)


@pytest.mark.usefixtures("two_gpus")
def test_each_rank_has_a_gpu_that_nobody_else_has(tmp_path: Path) -> None:
    one_rank = load_recipe("digits", ["train.ranks_per_node=1", *AUTO])
    with ReservationFile("another", ("GPU-a",), 1) as other:
        assert other.take()
        with own_gpus(launch(tmp_path), one_rank, Role(env={"A": "1"})) as role:
            assert role.env == {"A": "1", MASK: "GPU-b"}
            assert other.others()[0].work == "run-1"
    with own_gpus(launch(tmp_path), load_recipe("digits", AUTO), TWO_RANKS) as role:
        assert role.env[MASK] == "GPU-a,GPU-b"


@pytest.mark.usefixtures("two_gpus")
def test_a_training_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    where = launch(tmp_path)
    write_marker(StepFolder(tmp_path / "step").cancel, "enough")
    with ReservationFile("another", ("GPU-a",), 1) as other:
        assert other.take()
        with (
            pytest.raises(StepCancelledError, match=r"waits for 2 GPUs of .* holds 1"),
            own_gpus(where, load_recipe("digits", AUTO), TWO_RANKS),
        ):
            pass


@pytest.mark.parametrize(
    ("role", "words", "num_nodes"),
    [
        (Role(backend="slurm", batch=Batch(gpus_per_node=2)), [], 1),
        (Role(env={MEMORY: "0", MASK: "GPU-b"}), [], 1),
        (Role(launcher="mpirun"), [], 1),
        (Role(), ["trainer.accelerator=cpu"], 1),
        (Role(nodes=2, kind="gang"), [], 2),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_nothing_is_claimed_of_what_is_given(
    tmp_path: Path, role: Role, words: list[str], num_nodes: int
) -> None:
    with own_gpus(launch(tmp_path, num_nodes), load_recipe("digits", words or AUTO), role) as found:
        assert found == role
    assert not (tmp_path / "claims").exists()
