"""What a recipe alone tells about a run that cannot come to a good end."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import RecipeError
from headrace.recipe.fit import check_training
from headrace.recipe.load import load_recipe, load_site, parse
from headrace.recipe.recipe import Recipe


def recipe_of(dataset: dict[str, Any], **changes: Any) -> Recipe:
    model = load_recipe("digits").model
    assert model is not None
    content = {
        "name": "r",
        "dataset": {"name": "d", "source": "/data", **dataset},
        "model": model.as_config(),
        **changes,
    }
    return parse(Recipe, content, "test")


UNLABELLED = [
    {"labels": "none"},
    {"labels": "none", "format": "tar"},
    {"labels": "none", "format": "parquet", "fields": {"x": "pixels"}},
]


@pytest.mark.parametrize("dataset", UNLABELLED)
def test_an_evaluation_without_labels_is_refused(dataset: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"dataset\.labels is 'none'") as caught:
        check_training(recipe_of(dataset), load_site("laptop"))
    assert "evaluate: null" in caught.value.hint


@pytest.mark.parametrize(
    ("dataset", "changes"),
    [
        *((each, {"evaluate": None}) for each in UNLABELLED),
        ({}, {}),
        ({"labels": "none", "format": "parquet"}, {}),
        ({"labels": "none", "format": "parquet", "fields": {"label": "y"}}, {}),
        ({"labels": "none", "reader": {"_target_": "headrace.data.transforms.ScaleToUnit"}}, {}),
    ],
)
def test_what_may_bring_labels_is_not_refused(
    dataset: dict[str, Any], changes: dict[str, Any]
) -> None:
    check_training(recipe_of(dataset, **changes), load_site("laptop"))
