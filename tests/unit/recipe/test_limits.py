"""Numbers of recipes and sites have bounds; what is more than anyone writes is refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import HeadraceError, RecipeError, SiteError, without_secrets
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.schema import json_schema
from headrace.suites import values as sweep_values
from headrace.suites.values import domain_of, read_words

FREE = {"DataSpec.pad", "EvaluateSpec.checkpoint", "EvaluateSpec.also_checkpoints"}
"""Padding may be NaN or infinite; checkpoints have their bounds in words."""


def _unbounded(part: Any) -> bool:
    """Whether a number or list of a schema has no end."""
    if isinstance(part, list):
        return any(map(_unbounded, part))
    if not isinstance(part, dict):
        return False
    if part.get("type") in ("integer", "number") and not {"enum", "const"} & part.keys():
        low = {"minimum", "exclusiveMinimum"} & part.keys()
        return not (low and {"maximum", "exclusiveMaximum"} & part.keys())
    if part.get("type") == "array" and "maxItems" not in part:
        return True
    return any(map(_unbounded, part.values()))


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_every_number_and_list_has_bounds(kind):
    schema = json_schema(kind)
    parts = {"": schema, **schema["$defs"]}
    found = {
        f"{name}.{key}"
        for name, part in parts.items()
        for key, value in part.get("properties", {}).items()
        if _unbounded(value) and name != "SearchSpec"
    }
    assert found - FREE == set()


BOMB = [f"+model.a{i}=${{model.a{i - 1}}}${{model.a{i - 1}}}" for i in range(1, 18)]
HOSTILE = {
    "deep-key": [f"{'a.' * 20_000}b=1"],
    "deep-index": [f"a{'[0]' * 20_000}=1"],
    "unprintable-key": ["model.\u202elr=1"],
    "hexadecimal": [f"seed=0x{'f' * 5000}"],
    "sexagesimal": [f"seed=1{':1' * 8000}"],
    "decimal": [f"train.timeout={'9' * 4000}"],
    "infinite": ["trainer.gradient_clip_val=1e999999"],
    "not-a-number": ["trainer.gradient_clip_val=nan"],
    "huge-size": [f"pack.shard_bytes={2**61}"],
    "seeds": ["suite.seeds=99999999999"],
    "far-index": ["trainer.callbacks[99999999999]=1"],
    "interpolation-bomb": [f"+model.a0={'x' * 1000}", *BOMB],
    "nested-interpolations": [f"+model.x={'${' * 5000}"],
    "long-name": [f"train.init_from={'f' * 300}"],
    "null-byte": ['dataset.source="/a\0b"'],
    "long-duration": [f'train.timeout="1{" " * 16_000}x"'],
}


@pytest.mark.parametrize("overrides", HOSTILE.values(), ids=HOSTILE)
def test_hostile_overrides_are_refused_by_a_short_error(overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", overrides)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.x='" + "a" * 70_000 + "'"], "characters; at most 65,536"),
        (["seed=1"] * 501, "501 overrides"),
        (["+model.x=[" + "1," * 3000 + "]"], "values; at most 2,000"),
    ],
)
def test_overrides_are_limited_in_all(overrides, words):
    with pytest.raises(RecipeError, match=words):
        check_size(overrides)
    with pytest.raises(RecipeError, match=words):
        sweep_values.parse(overrides)


@pytest.mark.parametrize(
    "words",
    ["range(0," + "9" * 5000 + ")", "range(0," + "9" * 400 + ")", "range(0,1,1e-300)",
     "1," + "[" * 1500 + "]" * 1500, "interval(0," + "9" * 400 + ")", "range(0,1e308)"],
    ids=str.__len__,
)  # fmt: skip
def test_words_of_a_sweep_that_no_one_can_count_are_refused(words):
    for read in (lambda: sweep_values.parse([f"model.x={words}"]), lambda: read_words("x", words)):
        with suppress(RecipeError):
            read()
    with pytest.raises(RecipeError) as caught:
        domain_of("model.x", words)
    assert len(str(caught.value)) < 2000


def test_a_sweep_of_many_seeds_is_still_asked_for_in_few_words():
    _, update = sweep_values.parse(["seed=range(0,3000)"])
    recipe = load_recipe("digits", sweep_values.as_overrides(update))
    assert len(recipe.suite.seeds) == 3000


def test_a_recipe_keeps_numbers_that_are_none():
    recipe = load_recipe("digits", ["data.pad=nan", "+model.most=inf"])
    kept = Recipe.model_validate_json(recipe.model_dump_json(by_alias=True))
    assert str(kept.data.pad) == "nan"
    assert kept.model.as_config()["most"] == float("inf")


def test_numbers_of_a_site_have_bounds(tmp_path):
    text = "folder: /x\ntiers: [{name: a, folder: /a}]\nroles: {cpu: {nodes: 99999999999}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SiteError, match=r"roles\.cpu\.nodes: give .*≤ 1000000"):
        load_site(str(tmp_path / "mine.yaml"))


def test_errors_are_short_and_show_no_password():
    error = HeadraceError("x" * 100_000, "y" * 100_000)
    assert len(str(error)) < 20_000
    assert "secret" not in str(HeadraceError("s3://me:secret@host/" + "x" * 100_000))
    words = "://a:" * 130_000 + " @"  # by the time of each character alone, not of each pair
    assert without_secrets(words) == words
