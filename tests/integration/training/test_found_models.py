"""Models and data modules in the manner of published code, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.files.manifest import Manifest
from headrace.recipe.load import load_recipe, parse
from headrace.recipe.recipe import Recipe
from headrace.steps.context import StepContext
from headrace.training.train_step import train
from support.training import ThisProcessFleet, make_context, make_site, train_here

FOUND = Path(__file__).parents[2] / "found"
TALK = str(FOUND / "talk.yaml")
NO_DATA = Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())

pytestmark = pytest.mark.slow


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
    killing = f"code=[{FOUND},{tmp_path / 'hook'}]"
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
