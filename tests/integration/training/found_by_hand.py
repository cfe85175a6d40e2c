"""Programs of kinds whose packages are not installed with the tests; run by hand.

    uv pip install --python .venv/bin/python transformers accelerate jax
    TENSORFLOW_PYTHON=elsewhere/bin/python .venv/bin/pytest FILE -m slow

TensorFlow may be installed elsewhere, with `tf_keras`. What was run is on the page
`docs/how-to/bring-what-you-have.md`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.clusters.node_calls import no_check
from headrace.execution.execute import execute
from headrace.files.manifest import Manifest
from headrace.ledger.ledger import open_ledger
from headrace.steps.context import StepContext
from headrace.training.train_step import train
from support.bad_input import Place
from support.factories import write_yaml
from support.net_hosts import DATA
from support.runs import make_run
from support.sources import ROOT
from support.training import ThisProcessFleet, make_context, make_recipe, make_site

FOUND = ROOT / "tests" / "found"
NO_DATA = Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())

pytestmark = pytest.mark.slow

KILLING = """
import os, pathlib, signal, sys

if sys.argv[-1:] != ["-m"] and "HEADRACE_LAUNCH" in os.environ and os.environ["RANK"] == "0":
    from transformers import trainer_callback

    old = trainer_callback.DefaultFlowCallback.on_step_end

    def on_step_end(self, args, state, control, **others):
        marker = pathlib.Path(os.environ["KILLED_BEFORE"])
        if state.global_step == 12 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return old(self, args, state, control, **others)

    trainer_callback.DefaultFlowCallback.on_step_end = on_step_end
"""
"""`sitecustomize`: kills rank 0 of Hugging Face's Trainer once, in step 12."""


def ran(
    folder: Path, ranks: int, code: str = "", **keys: Any
) -> tuple[StepContext, dict[str, Any]]:
    recipe = make_recipe(
        {
            "dataset": None,
            "code": [code] if code else [],
            "train": {"ranks_per_node": ranks, **keys},
        }
    )
    context = make_context(folder, recipe, make_site(folder, ranks=ranks, is_fenced=False))
    outputs = train(context, ThisProcessFleet(), "", NO_DATA)
    assert (outputs["world_size"], outputs.get("problem")) == (ranks, None)
    return context, outputs


def log_of(context: StepContext, rank: int = 0) -> str:
    return (context.folder.logs / f"rank-{rank}.log").read_text()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_of_hugging_face_goes_on_from_its_own_checkpoint(tmp_path, ranks, monkeypatch):
    pytest.importorskip("transformers")
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(KILLING)
    monkeypatch.setenv("KILLED_BEFORE", str(tmp_path / "killed"))
    args = {
        "--output_dir": "out", "--num_train_epochs": 6 * ranks, "--save_steps": 5,
        "--logging_steps": 1, "--seed": "{seed}", "--use_cpu": True,
    }  # fmt: skip
    script = str(FOUND / "hf_trainer.py")
    context, outputs = ran(tmp_path, ranks, str(tmp_path / "hook"), script=script, args=args)
    assert outputs["restarts"] >= 1
    work = context.run_folder.work / "out"
    assert (work / "checkpoint-48").is_dir()
    assert "'train_samples_per_second'" in log_of(context)
    state = (work / "trainer_state.json").read_text()
    assert [int(step) for step in re.findall(r'"step": (\d+)', state)][:48] == [*range(1, 49)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate(tmp_path, ranks):
    pytest.importorskip("accelerate")
    args = {"--num_epochs": 2, "--output_dir": "out"}
    context, _ = ran(tmp_path, ranks, script=str(FOUND / "accelerate_loop.py"), args=args)
    assert f"epoch 1 on {ranks}: loss" in log_of(context)
    assert (context.run_folder.work / "out" / "epoch_1" / "model.safetensors").is_file()


@pytest.mark.parametrize("ranks", [1, 2])
def test_jax(tmp_path, ranks):
    pytest.importorskip("jax")
    context, _ = ran(tmp_path, ranks, script=str(FOUND / "jax_loop.py"), args={"--lr": 0.2})
    for rank in range(ranks):
        assert f"process {rank} of {ranks}: loss 0.00" in log_of(context, rank)
    found = np.load(context.run_folder.work / "weights.npz")["weights"]
    assert found == pytest.approx([1.0, -2.0, 0.5], abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_keras(tmp_path, ranks):
    """Keras 3 trains on one worker with TensorFlow; on several Keras 2 does, `tf_keras`."""
    python = os.environ.get("TENSORFLOW_PYTHON") or pytest.skip("no TENSORFLOW_PYTHON")
    keras = ["env", "TF_USE_LEGACY_KERAS=1"] if ranks > 1 else []
    command = [*keras, python, str(FOUND / "keras_workers.py")]
    context, _ = ran(tmp_path, ranks, command=command, args={"--epochs": 2})
    for rank in range(ranks):
        assert f"worker {rank} of {ranks}: loss" in log_of(context, rank)
        assert (context.run_folder.work / f"model-{rank}.keras").is_file()


def check_keras_on_two_nodes(home: Path, role: dict[str, Any]) -> None:
    """Two workers a node, by another prefix with another Python than headrace's."""
    python = os.environ.get("TENSORFLOW_PYTHON") or pytest.skip("no TENSORFLOW_PYTHON")
    command = ["env", "TF_USE_LEGACY_KERAS=1", python, str(FOUND / "keras_workers.py")]
    train = {"command": command, "args": {"--epochs": 2}, "nodes": 2, "ranks_per_node": 2}
    write_yaml(home / "recipes" / "keras.yaml", {"name": "keras", "train": train})
    size = {"kind": "gang", "nodes": 2, "ranks_per_node": 2, "lifetime": 900}
    tier = {"name": "own", "folder": str(home / "tier"), "reserve": 0}
    Place(home).write_site("two", roles={"gpu": size | role}, tiers=[tier])
    run = make_run(recipe="keras", site="two")
    assert execute(run, no_check) is None
    (step,) = open_ledger().attempts(run.run_id)
    assert (step.outputs["world_size"], step.outputs["restarts"]) == (4, 0)
    folder = run.lease_folder(str(step.lease_id)).path
    logs = [next(folder.glob(f"steps/*/logs/rank-{rank}.log")).read_text() for rank in range(4)]
    losses = {re.findall(r"worker \d of 4: loss ([\d.]+)", log)[-1] for log in logs}
    assert len(losses) == 1, "each worker has all gradients"


def test_keras_on_two_nodes_of_slurm(headrace_home, slurm, no_leftover_processes):
    """The nodes share an address, so only ports tell their workers apart."""
    batch = {"interface": "lo", "poll": 0.2, "gpus_per_node": 2}
    check_keras_on_two_nodes(headrace_home, {"backend": "slurm", "batch": batch})


def test_keras_on_two_hosts(headrace_home, no_leftover_processes, net_hosts):
    """Hosts with addresses of their own, in network namespaces."""
    logins = [login.model_dump() for login in net_hosts([2**20] * 2).logins]
    batch = {"interface": DATA, "poll": 0.2, "python": sys.executable, "hosts": logins}
    check_keras_on_two_nodes(headrace_home, {"backend": "ssh", "batch": batch})


@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed(tmp_path, ranks):
    """DeepSpeed by its own environment, without its launcher, on CPUs."""
    places = os.environ.get("DEEPSPEED_FOLDER") or pytest.skip("no DEEPSPEED_FOLDER")
    script = str(FOUND / "deepspeed_loop.py")
    context, _ = ran(tmp_path, ranks, places, script=script, args={"--local_rank": "{local_rank}"})
    assert f"on {ranks}: loss" in log_of(context)
