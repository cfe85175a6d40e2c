"""Recipes on pages can be read; those of suites name as many trials as their page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from headrace.cli.runs import sweep
from headrace.recipe.fence import absolute
from headrace.recipe.load import load_recipe, load_site, parse, source_of
from headrace.recipe.recipe import Recipe
from headrace.suites.points import checked, count
from headrace.suites.values import as_overrides
from headrace.suites.values import parse as parse_values

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "run-suites.md").read_text()
RECIPES = re.findall(r"^<!-- trials: (\d+) -->\n```yaml\n(.*?)^```$", TEXT, re.M | re.S)
WORDS = [
    (trials, words)
    for words, trials in re.findall(r"^\| `([^`|]+=[^`]+)` \| (\d+)[:,]", TEXT, re.M)
]
EXAMPLES = re.findall(r"headrace sweep digits (.*)", f"{TEXT}\n{sweep.__doc__}")
SITE = load_site("laptop").model_copy(update={"allowed_sources": ("/",)})


def trials_of(*overrides: str) -> int:
    words = ("dataset.source=/data", *overrides)
    return count(checked(absolute(load_recipe("digits", words)), source_of("digits", words), SITE))


def test_the_page_has_examples():
    assert (len(RECIPES), len(WORDS), len(EXAMPLES)) == (4, 4, 4)


@pytest.mark.parametrize(("trials", "text"), RECIPES)
def test_recipes_name_as_many_trials_as_the_page_says(trials, text, tmp_path, monkeypatch):
    (points,) = re.findall(r"^```csv\n(.*?)^```$", TEXT, re.M | re.S)
    (tmp_path / "points.csv").write_text(points)
    monkeypatch.chdir(tmp_path)
    overrides = (f"{key}={value}" for key, value in yaml.safe_load(text).items())
    assert trials_of(*overrides) == int(trials)


def asked_for(line: str) -> int:
    words = [word for word in shlex.split(line) if word != "--detach"]
    at = words.index("--trials") if "--trials" in words else None
    trials = None if at is None else int(words[at + 1])
    named = words if at is None else [*words[:at], *words[at + 2 :]]
    overrides, update = parse_values(named, trials=trials)
    return trials_of(*overrides, *as_overrides(update))


@pytest.mark.parametrize(("trials", "words"), WORDS)
def test_words_name_as_many_trials_as_the_page_says(trials, words):
    assert asked_for(words) == int(trials)


@pytest.mark.parametrize("words", EXAMPLES)
def test_examples_of_the_page_and_of_the_help_name_trials(words):
    assert asked_for(words) > 1


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "raw-samples.md"


def test_all_recipes_of_the_page_can_be_read():
    found = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names = set()
    for text in found:
        whole = {"name": "x", "model": {"_target_": "torch.nn.Identity"}, **yaml.safe_load(text)}
        names.add(parse(Recipe, whole, str(PAGE)).dataset.name)
    assert len(names) == len(found) == 10
