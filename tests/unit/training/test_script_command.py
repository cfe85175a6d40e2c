"""Arguments of scripts as words, as the parsers of scripts read them."""

from __future__ import annotations

import argparse
import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.recipe.overrides import read_override
from headrace.recipe.site import Role
from headrace.training.launch import rank_children
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


@pytest.mark.parametrize("value", ["adam", "a,b", "1", "true", "null", "it's", "{a}", 3, 0.1, True])
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


def test_tensorflow_finds_all_ranks_as_workers():
    launch = make_launch(**RUN, hosts=("a", "b"), master_port=4000)
    config = json.loads(tensorflow_config(launch, 3)["TF_CONFIG"])
    assert config["cluster"] == {"worker": ["a:4000", "a:4001", "b:4000", "b:4001"]}
    assert config["task"] == {"type": "worker", "index": 3}
