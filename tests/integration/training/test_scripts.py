"""Scripts and models in the manner of published code, unchanged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from headrace.errors import LeaseTakenError
from headrace.files.atomic import write_text
from headrace.files.manifest import Manifest
from headrace.recipe.load import load_recipe, parse
from headrace.recipe.recipe import Recipe
from headrace.states import FailureClass
from headrace.steps.context import StepContext
from headrace.steps.history import read_history
from headrace.steps.run import failure_of
from headrace.training.data_on_node import manifest_of
from headrace.training.train_step import train
from support.sources import ROOT
from support.training import (
    CODE,
    ThisProcessFleet,
    failure,
    make_context,
    make_recipe,
    make_site,
    train_here,
)

FOUND = ROOT / "tests" / "found"

pytestmark = pytest.mark.slow


def script(folder: Path, name: str, *arguments: str, code: Path = CODE, ranks: int = 2):
    recipe = make_recipe(
        {
            "seed": 3,
            "data": {"global_batch_size": 16},
            "train": {
                "script": str(CODE / f"{name}.py"),
                "args": arguments,
                "ranks_per_node": ranks,
            },
        }
    )
    return make_context(folder, recipe, make_site(folder, ranks=ranks, allowed_code=[str(code)]))


def test_a_ddp_loop_that_is_killed_goes_on_at_the_same_sample(
    dataset, tmp_path, no_leftover_processes
):
    """Kill -9 of one rank; 80 samples make 5 steps an epoch, a checkpoint comes every third."""
    context = script(tmp_path, "ddp_loop", "2", "1:7")
    outputs = train_here(context, dataset)
    assert Path(outputs["checkpoint"]).name == "trained.pt"
    assert outputs["world_size"] == 2
    assert outputs["restarts"] >= 1  # on a crowded machine ranks may also fail to meet
    assert (outputs["epochs"], outputs["steps"]) == (2, 10)
    assert outputs["metrics"]["loss"] == context.metrics["loss"] > 0
    assert (context.current.done, context.current.total) == (10, 10)

    history = read_history(context.run_folder)
    assert list(dict.fromkeys(row.step for row in history.starts)) == [0, 6]

    seen = [
        tuple(map(int, line.split()))
        for rank in range(2)
        for line in (context.run_folder.path / f"seen-{rank}").read_text().splitlines()
    ]
    assert Counter(sample for step, sample in set(seen)) == dict.fromkeys(range(80), 2)
    again = {step for (step, _), times in Counter(seen).items() if times > 1}
    assert again == {7}  # died in step 8; went on from the checkpoint of step 6


def test_a_script_that_knows_nothing_of_headrace(dataset, tmp_path, no_leftover_processes):
    outputs = train_here(script(tmp_path, "argparse_script", "--steps=7"), dataset)
    assert (Path(outputs["checkpoint"]).parent / "sum.txt").read_text().startswith("7 on ")
    assert (outputs["world_size"], outputs["steps"]) == (2, None)


def test_an_exception_on_one_rank_ends_the_others_by_sigterm(
    dataset, tmp_path, no_leftover_processes
):
    context = script(tmp_path, "argparse_script", "--steps=7", "--fails-on=1")
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.message.startswith("Rank 1 on node-0: the script ended with exit code 1")
    assert told.trace.endswith("ValueError: this rank alone")
    assert (context.run_folder.checkpoints / "stopped-0.txt").read_text() == "saved in time"


def test_a_script_of_hydra_pauses_and_goes_on(dataset, tmp_path):
    """As one does whose machines are taken away; a group of its configuration is chosen."""
    out = tmp_path / "out"
    arguments = ("optimizer=adam", "optimizer.lr=0.4", "steps=3", f"hydra.run.dir={out}")
    context = script(tmp_path, "hydra_script", *arguments, ranks=1)
    write_text(context.lease_folder.notice, "spot")
    error = failure(context, dataset)
    assert isinstance(error, LeaseTakenError)
    assert error.what.startswith("Training stopped after step 2")

    again = script(tmp_path, "hydra_script", *arguments, ranks=1)
    outputs = train_here(again, dataset)
    half = again.run_folder.checkpoints / "half.txt"
    assert Path(outputs["checkpoint"]).read_text() == f"adam from {half}"
    assert outputs["metrics"]["loss"] == pytest.approx(0.4 / 3)
    assert "top5" not in again.metrics
    (told,) = read_history(again.run_folder).metrics
    assert (told.launch, told.step, list(told.metrics)) == (2, 1, ["top5"])
    config = OmegaConf.load(out / ".hydra" / "config.yaml")
    assert config == {"optimizer": {"name": "adam", "lr": 0.4}, "steps": 3}


def test_a_script_outside_the_allowed_folders_is_refused(dataset, tmp_path):
    error = failure(script(tmp_path, "argparse_script", code=tmp_path), dataset)
    assert "does not allow code from" in error.what
    assert str(tmp_path) in error.hint


def test_ranks_that_do_not_meet_are_in_the_result(dataset, tmp_path, no_leftover_processes):
    apart = train_here(script(tmp_path / "apart", "argparse_script", "--steps=1"), dataset)
    assert "2 ranks ran and formed no process group" in apart["problem"]
    alone = train_here(script(tmp_path / "alone", "argparse_script", "--steps=1", ranks=1), dataset)
    assert "problem" not in alone


def test_a_found_script_writes_into_the_folder_of_its_run(tmp_path, no_leftover_processes):
    """Without a change to it, once, whatever the site has; its argument is swept by name."""
    recipe = make_recipe(
        {
            "dataset": None,
            "seed": 3,
            "train": {"script": str(FOUND / "argparse_sklearn.py"), "args": {"--seed": "{seed}"}},
        }
    )
    context = make_context(tmp_path, recipe, make_site(tmp_path, allowed_code=[str(FOUND)]))
    outputs = train(context, ThisProcessFleet(), "", manifest_of("", context.site))
    assert outputs["world_size"] == 1
    model = json.loads((context.run_folder.work / "model.json").read_text())
    assert model["options"] == {"penalty": 1.0, "seed": 3}


def found_step(folder: Path, name: str, **train):
    train = {"script": str(FOUND / name), **train}
    recipe = make_recipe({"dataset": None, "seed": 3, "train": train})
    return make_context(folder, recipe, make_site(folder, allowed_code=[str(FOUND)]))


def test_a_found_script_of_lightning_reports_its_metrics(tmp_path, no_leftover_processes):
    """On two ranks, whose metrics Lightning gathers: one of them alone has the callback."""
    context = found_step(tmp_path, "lightning_sync.py", ranks_per_node=2)
    outputs = train(context, ThisProcessFleet(), "", manifest_of("", context.site))
    assert outputs["metrics_from"] == "Lightning's Trainer"
    assert (outputs["epochs"], outputs["steps"]) == (3, 12)
    assert 0 < outputs["metrics"]["val_loss"] == context.metrics["val_loss"]
    assert (context.current.done, context.current.total) == (12, 12)
    history = read_history(context.run_folder)
    # between epochs rows come by time
    assert [row.step for row in history.metrics if "val_loss" in row.metrics] == [4, 8, 12]
    assert {*history.metrics[-1].metrics} == {"train_loss", "val_loss", "num_ranks"}
    assert outputs["metrics"]["num_ranks"] == 2


PUBLISHED = Path(__file__).parents[2] / "found"
TALK = str(PUBLISHED / "talk.yaml")
NO_DATA = Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())


def context_of(folder: Path, recipe: Recipe, ranks: int = 1) -> StepContext:
    return make_context(folder, recipe, make_site(folder, ranks=ranks, is_fenced=False))


def trained(folder: Path, *overrides: str, ranks: int = 1) -> dict:
    context = context_of(folder, load_recipe(TALK, overrides), ranks)
    return train(context, ThisProcessFleet(), "", NO_DATA)


def test_a_template_model_trains_on_tuples(dataset, tmp_path):
    """Its hyperparameters are modules, and a hook's body is `pass`."""
    overrides = (
        "~datamodule", "data.batch=[array,label]", "data.global_batch_size=16",
        f"dataset={{name: blobs, path: {dataset}}}", "evaluate=null",
    )  # fmt: skip
    outputs = train_here(context_of(tmp_path, load_recipe(TALK, overrides)), dataset)
    assert outputs["steps"] == 15
    assert outputs["metrics"]["val/acc"] > 0.5


@pytest.mark.parametrize("workers", [0, 1])
def test_own_loaders_resume_within_an_epoch_to_the_bit(tmp_path, workers, monkeypatch):
    """The rank is killed in the second epoch; shuffling and the order are those of the run."""
    given = ("trainer.checkpoint_every_steps=5", f"datamodule.num_workers={workers}")
    undisturbed = trained(tmp_path / "a", *given)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "killing.py").write_text(KILLING)
    monkeypatch.setenv("KILLED_BEFORE", str(tmp_path / "killed"))
    killing = f"code=[{PUBLISHED},{tmp_path / 'hook'}]"
    killed = trained(
        tmp_path / "b", *given, killing, "+trainer.callbacks=[{_target_: killing.Once}]"
    )
    assert killed["restarts"] == 1
    assert (killed["steps"], killed["weights_xxh3"]) == (75, undisturbed["weights_xxh3"])


KILLING = """
import os, pathlib, signal
from lightning.pytorch import Callback

class Once(Callback):
    def on_train_batch_end(self, trainer, *_):
        marker = pathlib.Path(os.environ["KILLED_BEFORE"])
        if trainer.global_step == 38 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_own_loaders_are_shared_out_over_ranks(tmp_path):
    outputs = trained(tmp_path, "trainer.max_epochs=1", ranks=2)
    assert (outputs["steps"], outputs["world_size"]) == (13, 2)


def test_a_model_with_loaders_of_its_own_needs_no_data_in_the_recipe(tmp_path):
    model = {"_target_": "lightning.pytorch.demos.boring_classes.BoringModel"}
    recipe = parse(Recipe, {"name": "boring", "model": model, "trainer": {"max_epochs": 1}}, "test")
    outputs = train(context_of(tmp_path, recipe), ThisProcessFleet(), "", NO_DATA)
    assert outputs["steps"] == 64
