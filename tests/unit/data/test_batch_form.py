"""Batches in the form that a model takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from pydantic import ValidationError

from headrace.data.batch_form import description, first_of, formed, transformed
from headrace.data.model_steps import check_model
from headrace.data.transforms import SAMPLE_ID, WHOLE, collated
from headrace.errors import DataError, RecipeError, UserCodeError
from headrace.recipe.recipe import DataSpec, Recipe

FIELDS = {"image": torch.zeros(2, 3), "label": torch.arange(2), SAMPLE_ID: torch.arange(2)}


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (None, None),
        ("image", "image"),
        (("label", "image"), ["label", "image"]),
        (("image",), ["image"]),
    ],
)
def test_a_model_gets_the_fields_that_the_recipe_names(form, names):
    made = formed(FIELDS, DataSpec(batch=form).batch)
    if names is None:
        assert made is FIELDS
    elif isinstance(names, str):
        assert made is FIELDS[names]
    else:
        assert isinstance(made, tuple)
        assert [id(part) for part in made] == [id(FIELDS[name]) for name in names]
    assert first_of(made) is (FIELDS["image"] if names == ["image"] else first_of(made))


@pytest.mark.parametrize("value", [(1, 2), [torch.ones(2)], torch.ones(2), "text", np.ones(2)])
def test_what_collate_forms_is_what_the_model_gets(value):
    batch = collated(
        lambda samples: value, [{SAMPLE_ID: torch.tensor(number)} for number in (4, 7)]
    )
    assert batch[SAMPLE_ID].tolist() == [4, 7]
    assert formed(batch, None) is value
    changed = transformed(batch, [lambda whole: ("changed", whole)])
    assert formed(changed, None) == ("changed", value) or changed[WHOLE][1] is value
    assert changed[SAMPLE_ID].tolist() == [4, 7]


def test_collate_that_returns_nothing_is_refused():
    with pytest.raises(UserCodeError, match="returned None"):
        collated(lambda samples: None, [{SAMPLE_ID: torch.tensor(0)}])


def test_a_missing_field_is_named_with_the_nearest():
    with pytest.raises(DataError, match="'lable'") as caught:
        formed(FIELDS, ("image", "lable"))
    assert "label" in caught.value.hint


COLLATE = {"_target_": "a.b"}


@pytest.mark.parametrize("spec", [{"batch": ()}, {"batch": ""}, {"batch": "x", "collate": COLLATE}])
def test_a_form_that_means_nothing_is_refused(spec):
    with pytest.raises(ValidationError):
        DataSpec.model_validate(spec)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (FIELDS, "data.batch: [image, label]"),
        ((FIELDS["image"], FIELDS["label"]), "a tuple of float32 (2, 3), int64 (2,)"),
        (FIELDS["image"], "float32 (2, 3)"),
        ((torch.zeros(2, 3, dtype=torch.uint8),), "ScaleToUnit} in data.transforms"),
        ([torch.zeros(2, 24, 32, 3), FIELDS["label"]], "ChannelsFirst} in data.transforms"),
        ({"x": torch.zeros(2, 3, dtype=torch.float64)}, "pack.fields.NAME.dtype: float32"),
        ({"text": ["a"]}, "text list"),
        (dict.fromkeys(range(20), 0), "…"),
        ({}, "a dict of "),
    ],
)
def test_a_batch_is_described(made, words):
    assert words in description(made)


class Hooks(LightningModule):
    def on_test_epoch_end(self):
        """Nothing yet."""

    def on_test_end(self):
        pass

    def on_test_start(self):
        self.started = True

    def test_step(self, batch, index):
        return None


def test_hooks_that_do_nothing_do_not_count():
    content = {"name": "r", "model": {"_target_": "a"}, "dataset": {"name": "d", "path": "/d"}}
    recipe = Recipe.model_validate({**content, "evaluate": {"step": "test", "task": "custom"}})
    with pytest.raises(RecipeError, match="Hooks has on_test_start"):
        check_model(Hooks(), recipe, trains=False)
    del Hooks.on_test_start
    check_model(Hooks(), recipe, trains=False)
