"""The reference recipes begin to train, and what they train is judged, each with 60 samples."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.examples.digits import export_digits
from headrace.recipe.load import load_recipe
from support.bad_input import Place
from support.shards import write_dataset
from support.training import make_context, make_site, train_here

EXAMPLES = Path(__file__).parents[2] / "examples"
JUDGED = {
    "audio": "accuracy",
    "gan": None,
    "resnet50": "accuracy",
    "segmentation": "iou",
    "transformer": "perplexity",
    "vqa": "accuracy",
}
"""Metric by recipe."""
SHARED_OUT = ("gan", "transformer")
"""Those that train on two ranks here; one costs less."""
STEPS = 4

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A copy of the examples with data, and the digits."""
    place = Place(tmp_path_factory.mktemp("examples") / "home")
    shutil.copytree(EXAMPLES, place.home, ignore=shutil.ignore_patterns("data", "__pycache__"))
    make = [sys.executable, "make_data.py", "data", "60"]
    subprocess.run(make, cwd=place.home, check=True, timeout=60)
    export_digits(place.home / "examples" / "digits")
    return place


def test_all_are_tried() -> None:
    assert {each.stem for each in EXAMPLES.glob("*.yaml")} == {"pipeline", *JUDGED}


@pytest.mark.parametrize("recipe", sorted(JUDGED))
def test_a_reference_recipe_runs(
    place: Place, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.home)
    few = (f"trainer.max_steps={STEPS}", "data.global_batch_size=8")
    ranks = f"train.ranks_per_node={1 + (recipe in SHARED_OUT)}"
    done = place.shown("run", f"{recipe}.yaml", *few, ranks, "pack_role=gpu")  # one lease
    place.wait_for_quiet()
    assert done.exit_code == 0, done.output
    outputs = place.newest()[0].outputs
    assert outputs["train"]["steps"] == STEPS
    metric = JUDGED[recipe]
    if metric is not None:
        assert metric in outputs["evaluate"]["metrics"]


def test_the_script_of_the_pipeline_runs(tmp_path: Path, no_leftover_processes: None) -> None:
    """On two ranks, without packing and a lease."""
    lines = np.random.default_rng(2).integers(0, 256, (48, 65), dtype=np.uint8)
    write_dataset(tmp_path / "dataset", {"array": lines}, splits={"train": 48})
    script = f"train.script={EXAMPLES / 'pipeline.py'}"
    arguments = 'train.args=[--epochs,"1",--batch,"12",--schedule,gpipe]'
    recipe = load_recipe(str(EXAMPLES / "pipeline.yaml"), [script, arguments])
    context = make_context(tmp_path, recipe, make_site(tmp_path, allowed_code=[str(EXAMPLES)]))
    outputs = train_here(context, tmp_path / "dataset")
    assert (outputs["steps"], outputs["world_size"]) == (STEPS, 2)
    assert 5 < outputs["metrics"]["loss"] < 7  # of 256 bytes alike: 5.5
    assert Path(outputs["checkpoint"]).name == "epoch-1.pt"
