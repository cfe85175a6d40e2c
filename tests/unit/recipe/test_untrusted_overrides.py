"""What whoever has no shell may set: all that is typed, and below open places what a rule says."""

from __future__ import annotations

import pytest

from headrace.errors import RecipeError
from headrace.recipe.recipe import Recipe
from headrace.recipe.untrusted_overrides import (
    RULES,
    OpenPlace,
    check_from_outside,
    open_places,
    place_of,
)
from headrace.record import Record
from support.sources import ROOT


def test_every_open_place_of_a_recipe_has_a_rule_and_a_row_on_the_page():
    assert set(open_places()) == set(RULES)
    page = ROOT / "docs" / "explanations" / "security.md"
    rows = [line.split("|") for line in page.read_text().splitlines()]
    rows = [row for row in rows if len(row) == 6 and row[1].strip().startswith("`")]
    told = {name.strip(" `"): row[3].strip() for row in rows for name in row[1].split(",")}
    assert told == {name: rule.value for name, rule in RULES.items()}
    assert all((ROOT / row[4].strip(" `")).is_file() for row in rows)


class _Mapping(Record):
    options: dict[str, object] = {}


class _Nested(Record):
    parts: tuple[dict[str, list[object]], ...] = ()
    named: dict[str, _Mapping] = {}
    sizes: dict[str, int] = {}


def test_a_new_open_mapping_is_found():
    assert list(open_places(_Mapping)) == ["options"]
    assert list(open_places(_Nested)) == ["parts.*", "named.*.options"]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("model.width", OpenPlace("model", ("width",))),
        ("data.transforms.0.mean", OpenPlace("data.transforms.*", ("mean",))),
        ("evaluate.metrics.top.k", OpenPlace("evaluate.metrics.*", ("k",))),
        ("trainer.compile", OpenPlace("trainer.compile", ())),
        ("trainer.no_such", OpenPlace("trainer.extra", ("no_such",))),
        ("trainer.target", OpenPlace("trainer.extra", ("target",))),
        ("trainer.max_epochs", None),
        ("dataset.splits.train", None),
        ("no.such", None),
    ],
)
def test_a_key_leads_to_a_place(key, place):
    assert place_of(key.split("."), Recipe) == place


@pytest.mark.parametrize(
    "override",
    [
        "model.options={cpp.march: native}",
        "model.options={depth: 1}",
        "model.options.march=native",
        "model={options: {march: native}}",
        "data.transforms=[{options: {a: b}}]",
        "data.transforms[0].options.a=b",
        "model.layers=[[{a: 1}]]",
        "evaluate.metrics={top: {options: {a: b}}}",
        "suite.search.sampler.options={a: b}",
        "suite.grid={model.options: [{a: b}]}",
        "train.script=/tmp/x.py",
        "train={module: http.server}",
        "+train.command=[sh, -c, id]",
        "[train].command[0]=sh",
        "train.folder=/tmp",
        "suite.grid={train.script: [/tmp/x.py]}",
        "vars.name=text",
        "suite.points=[{model.options: {a: b}}]",
        "suite.points=[{'model[options]': {a: b}}]",
        "model={_pairs_: [[_target_, os.system]]}",
        "model={_pairs_: [[0, 1]]}",
        "model.options._pairs_=[[0, 1]]",
        "model={options: {0: 1}}",
        "trainer.extra={_pairs_: [[plugins, a]]}",
        "suite.grid={model.options: [{_pairs_: [[0, 1]]}]}",
        "suite={zip: {trainer.extra.plugins: [a]}}",
        "suite.grid.trainer.extra.plugins=[a]",
        "trainer.target=os.system",
    ],
)
def test_what_goes_to_code_of_others_stays_as_the_file_says(override):
    with pytest.raises(RecipeError, match="only a recipe's file may set"):
        check_from_outside([override])


@pytest.mark.parametrize(
    "override",
    [
        "model.width=8",
        "vars.width=8",
        "args.--epochs=3",
        "train.args=[--epochs, 3]",
        "model.activation=relu",
        "model.layers=[[8, 16], [32]]",
        "model.backbone.depth=5",
        "data.transforms[0].mean=[0.1, 0.2]",
        "dataset.splits={train: 0.8, test: 0.2}",
        "evaluate=null",
        "suite.search.sampler=tpe",
        "suite.points=[{model.width: 4, trainer.max_epochs: 2}]",
        "suite.search.space={model.lr: 'interval(1e-4, 1e-1)'}",
    ],
)
def test_typed_keys_and_plain_arguments_pass(override):
    check_from_outside([override])


@pytest.mark.parametrize(
    "key",
    ["code", "+code", "++code", "~code", "code[0]", "+code[0]", "code.0", "[code]", "[code][0]"],
)
def test_no_spelling_of_a_key_sets_code(key):
    with pytest.raises(RecipeError, match="sets 'code'"):
        check_from_outside([key if key.startswith("~") else f"{key}=[/tmp/evil]"])


@pytest.mark.parametrize("key", ["[trainer][extra]", "trainer[extra]", "[trainer].extra"])
def test_no_spelling_of_a_key_leaves_its_rule(key):
    with pytest.raises(RecipeError, match="only a recipe's file may set"):
        check_from_outside([f"{key}.plugins=a"])
