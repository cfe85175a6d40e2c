"""Bounds of numbers: by kind, by role and by memory; more is refused by name."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import HeadraceError, RecipeError, SiteError, without_secrets
from headrace.recipe.fence import opened
from headrace.recipe.gang_size import check_nodes
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.schema import json_schema
from headrace.recipe.site import Role
from headrace.runs.resolve import resolve
from headrace.suites import points
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


AUTO = "trainer.accelerator=auto"
MINE = 8 * (os.cpu_count() or 1)
SLURM = {"backend": "slurm", "kind": "gang"}
GPUS = {**SLURM, "ranks_per_node": 2, "batch": {"gpus_per_node": 4}}
CPUS = {**SLURM, "ranks_per_node": 4, "threads_per_rank": 2}


@pytest.mark.parametrize(
    ("role", "most", "elsewhere"),
    [
        ({"kind": "gang", "ranks_per_node": 2}, max(MINE, 2), 2),
        ({"kind": "gang", "ranks_per_node": MINE + 1}, MINE + 1, MINE + 1),
        ({"kind": "gang", "ranks_per_node": 2, "ranks_per_node_max": 3}, 3, 3),
        ({"kind": "gang", "ranks_per_node": 2, "ranks_per_node_max": 1}, 2, 2),
        (GPUS, 4, 2),
        (CPUS, 64, 4),
        ({**CPUS, "batch": {"exclusive": True}}, 10**6, 4),
    ],
)
def test_ranks_of_a_node(role, most, elsewhere):
    """In a terminal as many as the node has room for; from Airflow as many as the role says."""
    site = load_site("laptop").model_copy(update={"roles": {"gpu": Role.model_validate(role)}})
    for door, bound in ((True, most), (False, elsewhere)):
        there = opened(site, is_from_terminal=door).roles["gpu"]
        check_nodes(load_recipe("digits", [f"train.ranks_per_node={bound}", AUTO]), there)
        if bound < 10**6:
            with pytest.raises(RecipeError, match=f"has only {bound}"):
                check_nodes(
                    load_recipe("digits", [f"train.ranks_per_node={bound + 1}", AUTO]), there
                )


def test_ranks_on_cpus_of_a_node_with_gpus():
    many = ["train.ranks_per_node=16", "trainer.accelerator=cpu"]
    check_nodes(load_recipe("digits", many), Role.model_validate(GPUS))


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("pack.fields={image: {resize: [100000, 100000]}}", "pack"),
        ("pack.fields={image: {resize: [100000, 100000]}}", "train"),
        ("train.ranks_per_node=32", "train"),
        ("train.nodes=2", "train"),
    ],
)
def test_a_run_from_airflow_is_refused_before_anything_starts(headrace_home, override, kind):
    recipe = load_recipe("digits", [override])
    with pytest.raises(RecipeError, match=override.partition("=")[0]):
        resolve(recipe, load_site("laptop"), kind, is_from_terminal=False)


def test_a_size_that_fits_is_taken(headrace_home):
    recipe = load_recipe("digits", ["pack.fields={image: {resize: [16, 16]}}"])
    resolve(recipe, load_site("laptop"), "pack", is_from_terminal=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["suite.grid={seed: [1, 2]}", f"suite.trials_per_node={MINE + 1}"], "trials_per_node"),
        (["suite.grid={train.ranks_per_node: [1, 32]}"], "train.ranks_per_node is 32"),
    ],
)
def test_trials_from_airflow(headrace_home, overrides, words):
    recipe = load_recipe("digits", overrides)
    recipe, site = resolve(recipe, load_site("laptop"), "suite", is_from_terminal=False)
    source = {**recipe.model_dump(mode="json", by_alias=True, exclude={"suite"})}
    with pytest.raises(RecipeError, match=words):
        points.checked(recipe, source, site)
