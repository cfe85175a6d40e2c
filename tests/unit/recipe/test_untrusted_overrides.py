"""What whoever has no shell may set: all that is typed, and below open places what a rule says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, JsonValue

from headrace.errors import RecipeError
from headrace.recipe import targets
from headrace.recipe.recipe import Recipe
from headrace.recipe.untrusted_overrides import RULES, OpenPlace, Rule, check_from_outside, place_of
from headrace.record import Record
from support.sources import ROOT


def open_places(annotation: Any = Recipe, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every place of a model whose values no model types."""
    for kind in alternatives(annotation):
        is_mapping = isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind.model_config.get("extra") == "allow":
                yield ".".join(path)
                continue
            for name, field in kind.model_fields.items():
                yield from open_places(field.annotation, (*path, name))
        elif is_mapping and any(map(holds_anything, get_args(kind))):
            yield ".".join(path)
        elif get_args(kind):
            yield from open_places(get_args(kind)[-1 if is_mapping else 0], (*path, "*"))


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation, without Annotated and unions."""
    if get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from alternatives(each)
    else:
        yield annotation


def holds_anything(annotation: Any) -> bool:
    is_open = annotation in (object, Any, JsonValue)
    return is_open or any(map(holds_anything, get_args(annotation)))


def test_every_open_place_of_a_recipe_has_a_rule_and_a_row_on_the_page():
    closed = {name for name, rule in RULES.items() if rule is Rule.NOTHING}
    program = {"train.script", "train.module", "train.command", "train.folder"}
    assert closed == {"code", "dataset.query", *program}
    assert set(open_places()) == RULES.keys() - closed
    page = ROOT / "docs" / "explanations" / "security.md"
    rows = [line.split("|") for line in page.read_text().splitlines()]
    rows = [row for row in rows if len(row) == 6 and row[1].strip().startswith("`")]
    told = {name.strip(" `"): row[3].strip() for row in rows for name in row[1].split(",")}
    assert told == {name: rule.value for name, rule in RULES.items()}
    assert all((ROOT / row[4].strip(" `")).is_file() for row in rows)


def test_every_place_of_a_target_is_walked_over():
    passed = {name.removesuffix(".*") for name, rule in RULES.items() if rule is Rule.ARGUMENTS}
    assert {*passed, "trainer", "trainer.callbacks", "trainer.loggers"} == targets._AT.keys()


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
    assert place_of(key.split(".")) == place


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
        "suite.grid={code: [[/tmp/evil]]}",
        "suite.grid.code=[[/tmp/evil]]",
        "data.transforms=[{mean: 0.5}, {options: {a: b}}]",
        "data={transforms: [{options: {a: b}}]}",
        "suite.points=[{vars.name: text}]",
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
        "suite.grid={trainer.compile: [true, false]}",
        "data.transforms=[{mode: reflect}]",
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
    with pytest.raises(RecipeError, match=r"sets 'code(\.0)?'"):
        check_from_outside([key if key.startswith("~") else f"{key}=[/tmp/evil]"])


@pytest.mark.parametrize("key", ["[trainer][extra]", "trainer[extra]", "[trainer].extra"])
def test_no_spelling_of_a_key_leaves_its_rule(key):
    with pytest.raises(RecipeError, match="only a recipe's file may set"):
        check_from_outside([f"{key}.plugins=a"])
