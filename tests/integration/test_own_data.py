"""What brings its own data runs as it is: a recipe without a dataset packs and stages nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import RecipeError
from headrace.states import StepState
from support.bad_input import Place, make_place, words
from support.training import CODE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_nothing_left")]


@pytest.fixture
def _nothing_left(no_leftover_processes: None) -> None:
    """No process is left."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home in which no dataset is named, and no role that would pack."""
    place = make_place(tmp_path / "home")
    gang = {"kind": "gang", "nodes": 1, "ranks_per_node": 2}
    place.write_site(roles={"gpu": gang})
    (place.home / "out").mkdir()
    return place


def write_recipe(place: Place, name: str, **train: object) -> None:
    place.write_recipe(name, dataset=None, model=None, train=train, pack_role="cpu", trainer={})


def test_a_script_for_torchrun_runs_unchanged_and_goes_on_after_kill_9(place: Place) -> None:
    snapshot = place.home / "out" / "snapshot.pt"
    arguments = ["--snapshot", str(snapshot), "--dies-in", "2"]
    write_recipe(place, "letters", script=str(CODE / "own_data.py"), args=arguments)
    plan = place.shown("plan", "letters", "--site", "here")
    words(plan.output, "gpu: gang of 1 node, 2 ranks each, on local, for train\n")
    words(plan.output, "nothing is packed or staged: the recipe has no dataset")
    words(plan.output, "how long train will take here; run it once with arguments")

    done = place.run("letters", f"train.args={json.dumps(arguments)}")
    assert done.returncode == 0, done.stdout + done.stderr
    record, attempts = place.newest()
    assert [(row.step, row.state) for row in attempts] == [("train", StepState.SUCCEEDED)]
    assert attempts[0].outputs["restarts"] >= 1
    with pytest.raises(RecipeError, match="leaves evaluation out") as caught:
        place.shown("evaluate", record.run_id)
    assert caught.value.hint.startswith("Only a 'model' can be evaluated")
    log = place.shown("logs", record.run_id, "train").output
    words(log, "epoch 1 from 0: loss", "epoch 2 from 2: loss")

    told = place.shown("status", record.run_id)
    words(told.output, "train", "none: the training reads its own data")
    assert "pack" not in told.output
    seen = json.loads(place.shown("status", record.run_id, "--json").output)
    assert [step["name"] for step in seen["steps"]] == ["train"]
    assert record.run_id in place.shown("runs").output
    words(place.shown("plan", "letters", "--site", "here").output, "train", "by 1 earlier run")
    what_if = place.shown("what-if", "letters", "--site", "here", "--nodes", "1,2")
    words(what_if.output, "letters, by 1 earlier run or trial on here")

    took = json.loads(place.shown("cost", record.run_id, "--by", "kind", "--json").output)
    assert {each["kind"]: each["train_s"] > 0 for each in took} == {"idle": False, "train": True}
    again = place.headrace("rerun", record.run_id)  # from the snapshot of the last epoch
    assert again.returncode == 0, again.stdout + again.stderr
    newest, _ = place.newest()
    assert newest.run_id != record.run_id
    same = place.shown("diff", record.run_id, newest.run_id)
    assert same.exit_code == 0, same.output
    resumed = place.headrace("resume", newest.run_id)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert len(place.newest()[1]) == 1  # it had trained to the end


def test_a_function_without_a_dataset_is_swept_over(place: Place) -> None:
    write_recipe(place, "square", function={"_target_": "objectives.value", "x": 1})
    swept = ["sweep", "square", "train.function.x=1,2", "train.function.fate=well,read"]
    done = place.headrace(*swept, "--site", "here")
    assert done.returncode == 0, done.stdout + done.stderr
    record, attempts = place.newest()
    assert [(row.step, row.state) for row in attempts] == [("suite", StepState.SUCCEEDED)]
    assert attempts[0].outputs["counts"] == {"succeeded": 2, "failed": 2}
    shown = place.shown("suite", "show", record.run_id, "--json").output
    words(shown, "The recipe has no 'dataset', so there is no data to read")
