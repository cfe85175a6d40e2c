"""The reference recipes begin to train, and what they train is judged, each with 60 samples."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.examples.digits import export_digits
from support.bad_input import Place, status_of

EXAMPLES = Path(__file__).parents[2] / "examples"
JUDGED = {
    "audio": "accuracy",
    "gan": None,
    "pipeline": None,
    "resnet50": "accuracy",
    "segmentation": "iou",
    "transformer": "perplexity",
    "vqa": "accuracy",
}
"""Metric by recipe."""
SHARED_OUT = ("gan", "pipeline", "transformer")
"""Those that train on two ranks here; one costs less."""
STEPS = 4
OF_SCRIPTS = {"pipeline": ('train.args=[--epochs,"1",--batch,"12"]',)}
"""What makes a script take so many steps."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


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
    assert {each.stem for each in EXAMPLES.glob("*.yaml")} == set(JUDGED)


@pytest.mark.parametrize("recipe", sorted(JUDGED))
def test_a_reference_recipe_runs(place: Place, recipe: str) -> None:
    few = OF_SCRIPTS.get(recipe, (f"trainer.max_steps={STEPS}", "data.global_batch_size=8"))
    ranks = f"train.ranks_per_node={1 + (recipe in SHARED_OUT)}"
    done = place.headrace("run", f"{recipe}.yaml", *few, ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = status_of(place)["steps"]
    assert steps["train"]["outputs"]["steps"] == STEPS
    metric = JUDGED[recipe]
    if metric is not None:
        assert metric in steps["evaluate"]["outputs"]["metrics"]
