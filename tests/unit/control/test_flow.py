"""The main job as data."""

from __future__ import annotations

import pytest

from headrace.control.flow import step_of, steps_of
from headrace.errors import UnknownNameError
from headrace.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("kind", "overrides", "steps"),
    [
        ("train", (), [("pack", "cpu"), ("stage", "gpu"), ("train", "gpu"), ("evaluate", "gpu")]),
        ("train", ("evaluate=null",), [("pack", "cpu"), ("stage", "gpu"), ("train", "gpu")]),
        ("train", ("pack_role=gpu", "evaluate=null"), [("pack", "gpu"), ("stage", "gpu"),
                                                       ("train", "gpu")]),
        ("pack", (), [("pack", "cpu")]),
    ],
)  # fmt: skip
def test_steps_and_roles(kind, overrides, steps):
    planned = steps_of(load_recipe("digits", overrides), kind)
    assert [(step.name, step.role) for step in planned] == steps


def test_inputs_come_from_the_outputs_of_earlier_steps():
    evaluate = step_of(load_recipe("digits"), "train", "evaluate")
    outputs = {"pack": {"dataset": "/d", "num_samples": 3}, "train": {"checkpoint": "/c"}}
    assert evaluate.inputs(outputs) == {"dataset": "/d", "checkpoint": "/c"}


def test_a_step_whose_inputs_are_not_there_names_what_must_run_first():
    train = step_of(load_recipe("digits"), "train", "train")
    with pytest.raises(UnknownNameError, match="needs 'dataset' of 'pack', which has not succeed"):
        train.inputs({})


def test_an_unknown_step_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no step 'trian'\n.*Did you mean 'train'"):
        step_of(load_recipe("digits"), "train", "trian")
    with pytest.raises(UnknownNameError, match=r"no step 'train'\n.*Valid: pack\."):
        step_of(load_recipe("digits"), "pack", "train")
