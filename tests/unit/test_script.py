"""What a script gets of headrace where it runs by itself, or asks for what there is not."""

from __future__ import annotations

import pytest

from headrace import script
from headrace.errors import UserError
from headrace.training.launch import script_environment
from headrace.training.launch_records import NodeReady
from support.training import make_launch, make_recipe


@pytest.fixture(autouse=True)
def by_itself(monkeypatch):
    for name in ("LAUNCH", "DATASET", "CHECKPOINTS", "RESUME"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)


def test_reports_and_questions_do_no_harm():
    script.report(3, loss=0.5)
    assert script.newest() is None
    assert not script.stop_asked()
    with pytest.raises(SystemExit) as ended:
        script.pause(3)
    assert ended.value.code == 0


@pytest.mark.parametrize("name", ["LAUNCH", "DATASET"])
def test_what_needs_a_run_names_the_variable(name):
    with pytest.raises(UserError, match=f"HEADRACE_{name} is not set"):
        script.loader("train") if name == "LAUNCH" else script.dataset("train")


@pytest.mark.parametrize("ask", [script.dataset_folder, lambda: script.dataset("train")])
def test_a_script_of_a_recipe_without_a_dataset_is_told_so(tmp_path, monkeypatch, ask):
    launch = make_launch(tmp_path, run_folder=str(tmp_path), dataset="")
    node = NodeReady(launch=launch, dataset="", fingerprint="")
    recipe = make_recipe(
        {"dataset": None, "train": {"function": {"_target_": "a.b"}}, "evaluate": None}
    )
    assert "HEADRACE_DATASET" not in script_environment(node, recipe)
    monkeypatch.setenv("HEADRACE_LAUNCH", node.model_dump_json())
    script._node.cache_clear()
    with pytest.raises(UserError, match="The recipe has no 'dataset'") as caught:
        ask()
    script._node.cache_clear()
    assert "dataset: {name: mine, source: /data/mine}" in caught.value.hint


def test_there_are_loaders_of_two_splits():
    with pytest.raises(UserError, match="no loader of the split 'test'") as caught:
        script.loader("test")
    assert "train, val" in caught.value.hint


def test_a_checkpoint_that_was_not_written_to_its_end_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CHECKPOINTS", str(tmp_path))

    def write(text: str) -> None:
        with script.saving("a.txt") as path:
            path.write_text(text)
            assert sorted(tmp_path.iterdir()) == [path]
            assert int(text)

    with pytest.raises(ValueError, match="half"):
        write("half")
    assert list(tmp_path.iterdir()) == []
    write("17")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
