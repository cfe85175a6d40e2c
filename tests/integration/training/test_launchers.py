"""Ranks that one mpirun or srun starts: the weights and the words of the default launcher."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import lease_client
from headrace.errors import SiteError
from headrace.recipe.site import Role
from headrace.steps import mailbox
from headrace.steps.context import StepContext
from headrace.training.launch_records import LaunchFolder
from support import container_image
from support.factories import step_spec
from support.leases import opened
from support.slurm_dev import DevSlurm
from support.training import blob_step, failure, train_here
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_GANG: dict[str, Any] = {
    "backend": "slurm",
    "kind": "gang",
    "nodes": 2,
    "ranks_per_node": 1,
    "lifetime": 600,
    "batch": {"interface": "lo", "poll": 0.2, "gpus_per_node": 2},
}


@pytest.fixture(scope="module")
def weights(dataset, tmp_path_factory) -> str:
    """Weights of two ranks that their node has started."""
    context = start(tmp_path_factory.mktemp("default"), launcher=None)
    return str(train_here(context, dataset)["weights_xxh3"])


@pytest.fixture
def mpirun(monkeypatch) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed: no program mpirun")
    if os.getuid() == 0:  # Open MPI wants to be asked twice
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def start(
    folder: Path, *, launcher: str | None = "mpirun", role: Role | None = None, **model: Any
) -> StepContext:
    """A training of two ranks, on one node unless the role says otherwise."""
    gang = {"kind": "gang", "nodes": 1, "ranks_per_node": 2, "launcher": launcher}
    roles = {"gpu": gang if role is None else role.model_dump()}
    return blob_step(folder, model, site={"roles": roles})


def test_a_launcher_that_starts_nothing_is_told_with_its_own_words(
    dataset, tmp_path, mpirun, no_leftover_processes
):
    role = Role(
        kind="gang", ranks_per_node=2, launcher="mpirun", launcher_options=("--no-such-option",)
    )
    context = start(tmp_path, role=role)
    error = failure(context, dataset)
    assert "mpirun ended with exit code" in error.what
    assert "no-such-option" in error.hint


def test_a_launcher_that_is_not_there_is_named(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(start(tmp_path), dataset)
    assert isinstance(error, SiteError)
    assert error.what == "There is no program 'mpirun' on node-0"


@pytest.mark.parametrize("runtime", [None, *container_image.RUNTIMES])
def test_ranks_of_srun_and_mpirun_end_like_those_of_the_default_launcher_though_one_was_killed(
    dataset, weights, tmp_path, slurm: DevSlurm, mpirun, runtime, no_leftover_processes
):
    """In a Slurm job, on both nodes of a gang. The death of a rank ends those of all nodes, is told
    of that rank, and leaves no trace in the weights. In a container, only ranks are inside.
    """
    batch = dict(_GANG["batch"])
    if runtime is not None:
        batch["container"] = container_image.made(tmp_path, runtime)
    gang = {**_GANG, "batch": batch}
    lease = opened(tmp_path, Role(**gang, launcher="srun"))
    try:
        for launcher, dies in (("srun", []), ("mpirun", [] if runtime else [[1, 17]])):
            run = start(tmp_path / launcher, role=Role(**gang, launcher=launcher), dies=dies)
            asked = step_spec(run.run_folder, "train", inputs={"dataset": str(dataset)})
            step = mailbox.submit(lease, asked.model_copy(update={"key": launcher}))
            result = wait_until(lambda step=step: mailbox.outcome(step), 120, launcher)
            assert result.outputs.get("weights_xxh3") == weights, result
    finally:
        lease_client.end(lease)
    restarts = [
        event["why"]
        for event in map(json.loads, step.events.read_text().splitlines())
        if event["event"] == "restart"
    ]
    assert restarts == ([] if runtime else ["Rank 1 on node-1: ended by signal SIGKILL"])
    last_launch = LaunchFolder(max(step.parts.glob("launch-*")))
    assert all(last_launch.placed(rank).exists() for rank in range(2))
    assert (step.logs / "mpirun.log").exists()
