"""Recipes as their users run them: the reference recipes, their own data, cross-validation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pyarrow import parquet

from headrace.errors import RecipeError
from headrace.examples.digits import export_digits
from headrace.recipe.load import load_recipe
from headrace.shards.dataset import ShardedDataset
from headrace.states import StepState
from support.bad_input import Place, make_place, words, write_class_folders
from support.runs import ended_owner, make_run
from support.shards import write_dataset
from support.training import CODE, make_context, make_site, train_here

EXAMPLES = Path(__file__).parents[2] / "examples"
JUDGED = {
    "audio": "accuracy",
    "compiled": "iou",
    "gan": None,
    "imagenet": "accuracy",
    "resnet50": "accuracy",
    "segmentation": "iou",
    "transformer": "perplexity",
    "vqa": "accuracy",
}
"""Metric by recipe."""
SHARED_OUT = ("compiled", "gan", "transformer")
"""Those that train on two ranks here; one costs less."""
SMALL = {"imagenet": ("data.sample_transforms.0.size=48",)}
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.home / "cache"))
    few = (f"trainer.max_steps={STEPS}", "data.global_batch_size=8")
    ranks = f"train.ranks_per_node={1 + (recipe in SHARED_OUT)}"
    few += SMALL.get(recipe, ())
    done = place.shown("run", f"{recipe}.yaml", *few, ranks, "pack_role=gpu")  # one lease
    place.wait_for_quiet()
    assert done.exit_code == 0, done.output
    outputs = place.newest()[0].outputs
    assert outputs["train"]["steps"] == STEPS
    metric = JUDGED[recipe]
    if metric is not None:
        assert metric in outputs["evaluate"]["metrics"]
    if recipe == "compiled":
        first, second = built(place), built(place, *few, ranks, "seed=4")
        assert (first, second) == (["[1/2] c++", "[2/2] c++"], [])


def built(place: Place, *words: str) -> list[str]:
    """Steps of builds in the logs of all processes of the newest run; of a new one with words."""
    if words:
        done = place.shown("run", "compiled.yaml", *words, "evaluate=null", "pack_role=gpu")
        place.wait_for_quiet()
        assert done.exit_code == 0, done.output
    logs = place.shown("logs").output
    assert "BlurAndStretch" in logs or "ninja: no work to do" in logs
    return re.findall(r"\[\d/\d\] c\+\+", logs)


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


@pytest.fixture
def _nothing_left(no_leftover_processes: None) -> None:
    """No process is left."""


@pytest.fixture
def own_place(tmp_path: Path) -> Place:
    """A home in which no dataset is named, and no role that would pack."""
    own_place = make_place(tmp_path / "home")
    gang = {"kind": "gang", "nodes": 1, "ranks_per_node": 2}
    own_place.write_site(roles={"gpu": gang})
    (own_place.home / "out").mkdir()
    return own_place


def write_recipe(own_place: Place, name: str, **train: object) -> None:
    own_place.write_recipe(name, dataset=None, model=None, train=train, pack_role="cpu", trainer={})


@pytest.mark.usefixtures("_nothing_left")
def test_a_script_for_torchrun_runs_unchanged_and_goes_on_after_kill_9(own_place: Place) -> None:
    snapshot = own_place.home / "out" / "snapshot.pt"
    arguments = ["--snapshot", str(snapshot), "--dies-in", "2"]
    script = str(CODE / "own_data.py")
    write_recipe(own_place, "letters", script=script, args=arguments, ranks_per_node=2)
    plan = own_place.shown("plan", "letters", "--site", "here")
    words(plan.output, "gpu: gang of 1 node, 2 ranks each, on local, for train\n")
    words(plan.output, "nothing is packed or staged: the recipe has no dataset")
    words(plan.output, "how long train will take here; run it once with arguments")

    done = own_place.run("letters", f"train.args={json.dumps(arguments)}")
    assert done.returncode == 0, done.stdout + done.stderr
    record, attempts = own_place.newest()
    assert [(row.step, row.state) for row in attempts] == [("train", StepState.SUCCEEDED)]
    assert attempts[0].outputs["restarts"] >= 1
    with pytest.raises(RecipeError, match="leaves evaluation out") as caught:
        own_place.shown("evaluate", record.run_id)
    assert caught.value.hint.startswith("Only a 'model' can be evaluated")
    log = own_place.shown("logs", record.run_id, "train").output
    words(log, "epoch 1 from 0: loss", "epoch 2 from 2: loss")

    told = own_place.shown("status", record.run_id)
    words(told.output, "train", "none: the training reads its own data")
    assert "pack" not in told.output
    seen = json.loads(own_place.shown("status", record.run_id, "--json").output)
    assert [step["name"] for step in seen["steps"]] == ["train"]
    assert record.run_id in own_place.shown("runs").output
    words(own_place.shown("plan", "letters", "--site", "here").output, "train", "by 1 earlier run")
    what_if = own_place.shown("what-if", "letters", "--site", "here", "--nodes", "1,2")
    words(what_if.output, "letters, by 1 earlier run or trial on here")

    took = json.loads(own_place.shown("cost", record.run_id, "--by", "kind", "--json").output)
    assert {each["kind"]: each["train_s"] > 0 for each in took} == {"idle": False, "train": True}
    again = own_place.headrace("rerun", record.run_id)  # from the snapshot of the last epoch
    assert again.returncode == 0, again.stdout + again.stderr
    newest, _ = own_place.newest()
    assert newest.run_id != record.run_id
    same = own_place.shown("diff", record.run_id, newest.run_id)
    assert same.exit_code == 0, same.output
    resumed = own_place.headrace("resume", newest.run_id)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert len(own_place.newest()[1]) == 1  # it had trained to the end


def test_a_run_trains_what_was_submitted(own_place: Place, tmp_path: Path) -> None:
    """It waits while its module is edited; a resume takes the new one only if that is asked for."""
    script, data = tmp_path / "lab" / "scripts" / "train.py", tmp_path / "lab" / "data.txt"
    script.parent.mkdir(parents=True)
    data.write_text("data")
    read = "pathlib.Path(__file__).parents[1].joinpath('data.txt').read_text()"
    script.write_text(f"import pathlib, helper\nassert {read} == 'data'\nassert helper.V == 2\n")
    helper = script.with_name("helper.py")
    helper.write_text("V = 1\n")
    write_recipe(own_place, "waits", script=str(script), max_restarts=0)
    with mock.patch.dict(os.environ, own_place.environment(), clear=True):
        recipe, site = (
            str(own_place.home / each) for each in ("recipes/waits.yaml", "sites/here.yaml")
        )
        run = make_run(recipe=recipe, site=site, owner=ended_owner())
    helper.write_text("V = 2\n")
    away = script.parent.rename(tmp_path / "away")  # as on a machine without the user's folder
    old = own_place.headrace("resume", run.run_id)
    away.rename(script.parent)
    words(old.stdout + old.stderr, "assert helper.V == 2")
    assert old.returncode == 1
    new = own_place.headrace("resume", run.run_id, "--new-code")
    assert new.returncode == 0, new.stdout + new.stderr
    words(own_place.shown("status", run.run_id).output, f"code of {tmp_path / 'lab'}")


@pytest.mark.usefixtures("_nothing_left")
def test_a_function_without_a_dataset_is_swept_over(own_place: Place) -> None:
    write_recipe(own_place, "square", function={"_target_": "objectives.value", "x": 1})
    swept = ["sweep", "square", "train.function.x=1,2", "train.function.fate=well,read"]
    done = own_place.headrace(*swept, "--site", "here")
    assert done.returncode == 0, done.stdout + done.stderr
    record, attempts = own_place.newest()
    assert [(row.step, row.state) for row in attempts] == [("suite", StepState.SUCCEEDED)]
    assert attempts[0].outputs["counts"] == {"succeeded": 2, "failed": 2}
    shown = own_place.shown("suite", "show", record.run_id, "--json").output
    words(shown, "The recipe has no 'dataset', so there is no data to read")


FOLDS, FOLD_SAMPLES = 3, 40


@pytest.fixture
def folded(tmp_path: Path) -> Place:
    """A home with recipe `folded`: 120 pictures of ten classes in three folds, no other split."""
    folded = Place(tmp_path / "home")
    folded.home.mkdir()
    folded.write_site()
    classes = tuple("abcdefghij")
    source = write_class_folders(folded.home / "raw", classes=classes, per_class=12)
    folded.write_recipe(
        "folded",
        dataset={
            "name": "folded",
            "source": str(source),
            "splits": {"train": 1.0},
            "folds": FOLDS,
        },
        code=[],
        pack={"shard_samples": 15},
        model={"_target_": "headrace.examples.digits_model.DigitsClassifier"},
        data={
            "global_batch_size": 8,
            "fold": 0,
            "transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit"}],
        },
        evaluate={"split": "val"},
    )
    return folded


def test_a_run_is_judged_on_its_fold_alone(folded: Place) -> None:
    """A suite has a trial for each fold; a fold is also a run of its own, with the same result.

    Repeated from its record alone, a run has the same weights.
    """
    swept = folded.headrace("sweep", "folded", "suite.folds=true")
    assert swept.returncode == 0, swept.stdout + swept.stderr
    suite, _ = folded.newest()
    listed = json.loads(folded.shown("suite", "show", suite.run_id, "--json").stdout)
    trials = sorted(listed, key=lambda each: each["number"])
    assert [each["values"] for each in trials] == [{"data.fold": fold} for fold in range(FOLDS)]
    words(folded.shown("results", suite.run_id, "--by", "accuracy:max").output, "Folds:")
    done = folded.headrace("run", "folded", "data.fold=2", "train.ranks_per_node=1", "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = folded.newest()[0].outputs
    assert outputs["evaluate"]["metrics"]["accuracy"] == trials[2]["metrics"]["accuracy"]
    (rehearsal,) = (folded.home / "runs").glob("folded-rehearsal-*")
    assert not (rehearsal / "rehearsed").exists()
    again = folded.headrace("rerun", folded.newest()[0].run_id)
    assert again.returncode == 0, again.stdout + again.stderr
    weights = folded.newest()[0].outputs["train"]["weights_xxh3"]
    assert weights == outputs["train"]["weights_xxh3"]
    assert outputs["pack"]["reused"]
    assert outputs["train"]["steps"] == (FOLDS - 1) * FOLD_SAMPLES // 8
    assert "val/accuracy" in outputs["train"]["metrics"]
    held_out = ShardedDataset(Path(outputs["pack"]["dataset"]), "val", fold=2)
    expected = held_out.gather("sample_id", np.arange(len(held_out)))
    found = parquet.read_table(outputs["evaluate"]["predictions"])["sample_id"].to_numpy()
    np.testing.assert_array_equal(found, np.sort(expected))
    assert outputs["evaluate"]["num_samples"] == FOLD_SAMPLES
    report = Path(outputs["evaluate"]["report"]).read_text().replace("&#39;", "'")
    assert f"{FOLD_SAMPLES} samples of fold 2 of split 'train'" in report
    for title in ("Loss", "Accuracy", "Learning rate", "Throughput"):
        assert f'alt="{title}"' in report
    assert "headrace run folded --site laptop data.fold=2" in report
    assert re.search(r">data.fold</td><td[^>]*>0</td><td[^>]*>2</td>", report)
