"""A training that is no trial claims GPUs where no queue gives out machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.clusters.gpu_reservations import FOLDER, ReservationFile
from headrace.errors import StepCancelledError
from headrace.files.atomic import write_marker
from headrace.files.layout import StepFolder
from headrace.processes.identity import MEMORY
from headrace.recipe.batch import Batch
from headrace.recipe.load import load_recipe
from headrace.recipe.site import Role
from headrace.training.launch_records import NodeLaunch
from headrace.training.own_gpus import own_gpus
from support.training import make_launch

MASK = "CUDA_VISIBLE_DEVICES"
TWO_RANKS = Role(ranks_per_node=2)
AUTO = ("trainer.accelerator=auto",)


@pytest.fixture(autouse=True)
def _two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "claims"))
    monkeypatch.setenv(MASK, "GPU-a,GPU-b")


def launch(folder: Path, num_nodes: int = 1) -> NodeLaunch:
    (folder / "step").mkdir(exist_ok=True)
    run = str(folder / "run-1")
    return make_launch(folder, run_folder=run, num_nodes=num_nodes, ranks_per_node=2)


def test_each_rank_has_a_gpu_that_nobody_else_has(tmp_path: Path) -> None:
    one_rank = load_recipe("digits", ["train.ranks_per_node=1", *AUTO])
    with ReservationFile("another", ("GPU-a",), 1) as other:
        assert other.take()
        with own_gpus(launch(tmp_path), one_rank, Role(env={"A": "1"})) as role:
            assert role.env == {"A": "1", MASK: "GPU-b"}
            assert other.others()[0].work == "run-1"
    with own_gpus(launch(tmp_path), load_recipe("digits", AUTO), TWO_RANKS) as role:
        assert role.env[MASK] == "GPU-a,GPU-b"


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
def test_nothing_is_claimed_of_what_is_given(
    tmp_path: Path, role: Role, words: list[str], num_nodes: int
) -> None:
    with own_gpus(launch(tmp_path, num_nodes), load_recipe("digits", words or AUTO), role) as found:
        assert found == role
    assert not (tmp_path / "claims").exists()
