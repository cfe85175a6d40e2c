"""Scripts: their arguments as words, and what headrace gives them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence

import click
import fire
import jsonargparse
import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace import script
from headrace.errors import UserError
from headrace.recipe.overrides import read_override
from headrace.recipe.site import Role
from headrace.training.launch import rank_children, script_environment
from headrace.training.launch_records import NodeReady
from headrace.training.script_command import script_command, tensorflow_config, words_of
from support.training import make_launch, make_recipe

RUN = {"run_folder": "/runs/r/trials/000007", "ranks_per_node": 2, "node_index": 1, "num_nodes": 2}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--epochs", 3, 0.5), ("--epochs", "3", "0.5")),
        ({"--epochs": 3, "-n": -1}, ("--epochs=3", "-n", "-1")),
        ({"--lr": -1e-05}, ("--lr=-1e-05",)),
        ({"--amp": True, "--slow": False}, ("--amp",)),
        ({"--layers": (1, 2), "--none": ()}, ("--layers", "1", "2", "--none")),
        ({"opt": "adam", "opt.lr": 0.1, "+on": True}, ("opt=adam", "opt.lr=0.1", "+on=true")),
        ({"name": "a b", "number": "1"}, ("name=a b", "number='1'")),
        ({"sizes": (1, 2), "of": ""}, ("sizes=[1, 2]", "of=")),
        ({"clip": None, "--clip": None, "-n": None}, ("clip=null",)),
    ],
)
def test_names_and_values_become_words(args, words):
    assert words_of(args) == words


@given(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=20),
        st.integers(-(10**18), 10**18),
        st.floats(-1e15, 1e15),
    )
)
def test_parsers_read_the_value_that_is_written(value):
    args = words_of({"--value": value})
    parser = argparse.ArgumentParser()
    parser.add_argument("--value", type=type(value))
    assert parser.parse_args(args).value == value
    option = click.Option(["--value"], type=type(value))
    found = click.Command("it", params=[option]).make_context("it", list(args)).params
    assert found["value"] == value


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of each type, as the parsers below take them."""

    number: int = 1
    fraction: float = 0.5
    text: str = "a"
    on: bool = False
    off: bool = True
    many: tuple[int, ...] = (1,)


def _fire(words: Sequence[str]) -> Options:
    return fire.Fire(lambda **given: Options(**given), list(words), serialize=lambda _: "")


def _jsonargparse(words: Sequence[str]) -> Options:
    return jsonargparse.auto_cli(Options, args=list(words), as_positional=False)


def _tyro(words: Sequence[str]) -> Options:
    return tyro.cli(Options, args=list(words))


_MANY = Options(many=(2, 3))


@pytest.mark.parametrize(
    ("args", "parsers", "options"),
    [
        ({"--number": -3}, (_fire, _jsonargparse, _tyro), Options(number=-3)),
        ({"--fraction": 1e-05}, (_fire, _jsonargparse, _tyro), Options(fraction=1e-05)),
        ({"--text": "b c=d, e"}, (_fire, _jsonargparse, _tyro), Options(text="b c=d, e")),
        ({"--on": True}, (_fire, _tyro), Options(on=True)),
        ({"--on": "true"}, (_jsonargparse,), Options(on=True)),
        ({"--no-off": True}, (_tyro,), Options(off=False)),
        ({"--off": "False"}, (_fire,), Options(off=False)),
        ({"--off": "false"}, (_jsonargparse,), Options(off=False)),
        ({"--on": False, "--off": None}, (_fire, _jsonargparse, _tyro), Options()),
        ({"--many": (2, 3)}, (_tyro,), _MANY),
        ({"--many": "[2, 3]"}, (_jsonargparse,), _MANY),
        ({"--many": "2,3"}, (_fire,), _MANY),
    ],
)
def test_parsers_read_options_as_the_page_says(args, parsers, options):
    """The table of `docs/how-to/train-with-a-script.md`."""
    for parser in parsers:
        assert parser(words_of(args)) == options


@pytest.mark.parametrize(
    "value", ["adam", "a,b", "1", "true", "null", "it's", "{a}", 3, 0.1, True, None]
)
def test_hydra_reads_the_value_that_is_written(value):
    (word,) = words_of({"opt.value": value})
    assert read_override(word).value == value
    if value != "it's":
        assert OmegaConf.from_cli([word]).opt.value == value


def test_placeholders_are_filled_in_and_other_braces_stay():
    node = NodeReady(launch=make_launch(**RUN), dataset="/shm/d", fingerprint="")
    args = ["{run}/a", "{checkpoints}", "{dataset}", "{seed}", "{rank}{local_rank}", "{trial}"]
    others = ["{epoch}-{{seed}}", '{"seed": 1}', "$(id); {rank}"]
    recipe = make_recipe(
        {"seed": 5, "train": {"command": ["bash", "{run}.sh"], "args": [*args, *others]}}
    )
    run = "/runs/r/trials/000007"
    assert script_command(node, recipe, 3) == (
        "bash", f"{run}.sh", f"{run}/a", f"{run}/checkpoints", "/shm/d", "5", "31", "7",
        "{epoch}-{seed}", '{"seed": 1}', "$(id); 3",
    )  # fmt: skip


def test_a_module_runs_as_by_python_m_in_the_folder_of_the_run():
    node = NodeReady(launch=make_launch(), dataset="", fingerprint="")
    recipe = make_recipe({"train": {"module": "lab.train", "args": {"--epochs": 3}}})
    (child,) = rank_children(node, recipe, Role(kind="gang"))
    assert child.command[-3:] == ("-m", "lab.train", "--epochs=3")
    assert child.env["HEADRACE_WORKING_FOLDER"] == "/nowhere/run/work"
    assert "TF_CONFIG" not in child.env


def test_the_copy_of_a_module_comes_before_the_working_folder(tmp_path):
    """Where the user's own module lies, which may have been edited since."""
    for name, text in (("copy", "submitted"), ("here", "edited")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lab.py").write_text(f"import beside; print('{text}')\n")
    (tmp_path / "here" / "beside.py").touch()
    node = NodeReady(launch=make_launch(run_folder=str(tmp_path)), dataset="", fingerprint="")
    train = {"module": "lab", "folder": str(tmp_path / "here")}
    recipe = make_recipe({"code": [str(tmp_path / "copy")], "train": train})
    (child,) = rank_children(node, recipe, Role(kind="gang"))
    env = {**os.environ, **child.env}
    assert subprocess.check_output(child.command, env=env, text=True) == "submitted\n"


def test_tensorflow_finds_all_ranks_as_workers():
    launch = make_launch(**RUN, hosts=("a", "b"), ports=(4000, 4001, 4000, 5000))
    config = json.loads(tensorflow_config(launch, 3)["TF_CONFIG"])
    assert config["cluster"] == {"worker": ["a:4000", "a:4001", "b:4000", "b:5000"]}
    assert config["task"] == {"type": "worker", "index": 3}


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
