"""Wrong values are answered in words of the file, by a schema that agrees with the loader."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from headrace.errors import UserError
from headrace.recipe.load import BUILT_IN, available, load_recipe, parse
from headrace.recipe.schema import MODELS, json_schema

WRONG: tuple[Any, ...] = (
    None, [], [None, "a b", {"x": 1}], {}, {"x y/": None}, {"x": 1}, "~ text ~", "", -3.5, 10**30,
    True,
)  # fmt: skip
FILES = {
    "recipe": yaml.safe_load((BUILT_IN / "recipes" / "digits.yaml").read_text()),
    "site": yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text()),
}
FOREIGN = (
    "Input should be", "instance of", "validation error", "Value error", "Field required",
    "should match", "should have", "valid dictionary", "valid tuple", "unable to", "Tuple",
    "constrained-", "function-", "NoneType", "dict[", "tuple[", "None", "True", "[key]",
)  # fmt: skip


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """A model and all models in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


def places(kind: type[BaseModel]) -> Iterator[tuple[str | int, ...]]:
    """Each key of a file, with a name where names are free, and 0 for entries of lists."""

    def inside(annotation: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for name, field in annotation.model_fields.items():
                inner = (*place, field.alias or name)
                yield inner
                yield from inside(field.annotation, inner)
            return
        origin = getattr(annotation, "__origin__", None)
        below = {dict: (*place, "one"), tuple: (*place, 0)}.get(origin, place)
        if below != place:
            yield below
        for part in get_args(annotation)[1 if origin is dict else 0 :]:
            yield from inside(part, below)

    return inside(kind, ())


def with_value(content: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A content with a value at a place, whatever was there and on the way."""
    if not place:
        return value
    key = place[0]
    if isinstance(key, int):
        return [with_value(None, place[1:], value)]
    outer = copy.copy(content) if isinstance(content, dict) else {}
    outer[key] = with_value(outer.get(key), place[1:], value)
    return outer


CLASSES = {each.__name__ for kind in MODELS.values() for each in models_in(kind)}
NAMED = re.compile(rf"\b({'|'.join(sorted(CLASSES))})\b")


def refusal(kind: str, content: dict[str, Any]) -> str:
    """What a content is answered with; empty where it is right."""
    try:
        parse(MODELS[kind], content, "the file")
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", MODELS)
def test_no_message_speaks_of_pydantic(kind: str) -> None:
    refused = 0
    for place in places(MODELS[kind]):
        for value in WRONG:
            told = refusal(kind, with_value({"name": "it", **FILES[kind]}, place, value))
            assert not [word for word in FOREIGN if word in told], (place, value, told)
            assert not NAMED.search(told), (place, value, told)
            refused += bool(told)
    assert refused > 500


@pytest.mark.parametrize("kind", MODELS)
def test_every_wrong_value_is_told_with_its_key_and_what_that_takes(kind: str) -> None:
    for place in places(MODELS[kind]):
        content = with_value({"name": "it", **FILES[kind]}, place, "~ text ~")
        try:
            MODELS[kind].model_validate(content)
        except ValidationError as error:
            wrong = {item["loc"] for item in error.errors() if item["type"] != "value_error"}
            told = refusal(kind, content)
        else:
            continue
        if place in wrong:
            key = re.escape(".".join(map(str, place)))
            got = "" if place[0] == "secrets" else r" \(got '~ text ~'\)"
            assert re.search(rf"[:;] {key}: give \S.*{got}", told), (place, told)


def test_a_missing_key_is_told_with_what_it_takes() -> None:
    content = {"name": "it", **FILES["recipe"], "dataset": {"source": "/s"}}
    told = refusal("recipe", content)
    assert "the key 'dataset.name' is missing" in told
    assert "'dataset.name' takes a name of up to 64 letters, digits" in told


def test_an_override_that_merges_with_nothing_is_told_in_one_line() -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("digits", ["data.transforms=[{a: 1}]", "data.transforms={a: [1], b: 2}"])
    assert "\n" not in caught.value.what
    assert "Config" not in caught.value.what


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer=null", ["trainer: give a mapping with keys of _target_, max_epochs", "(got null)",
                          "Leave 'trainer' out to have its default"]),
        ("trainer.max_epochs=many", ["trainer.max_epochs: give an integer (≥ 1", "(got 'many')"]),
        ("data.on_bad_shard=skipp", ["give one of 'stop', 'skip' (got 'skipp')", "mean 'skip'?"]),
        ("data.drop_last=maybe", ["data.drop_last: give true or false (got 'maybe')"]),
        ("dataset.splits={'a b': 1}", ["dataset.splits.a b: give another name for the key"]),
        ("dataset.source=[a]", ["dataset.source: give text", "or null (got a list)"]),
        ("dataset=[1]", ["dataset: give a mapping with keys of name, source", "(got a list)"]),
        ("dataset.include={a: 1}", ["dataset.include: give a list", "(got a mapping)"]),
        ("suite.seeds=[a]", ["suite.seeds: give an integer (≥ 1, ≤ 100000) or a list (at least 1"]),
        ("suite.budget=0", ["suite.budget: give a number (> 0, ≤ 1e+15) or null (got 0)"]),
        ("train.timeout={}", ["train.timeout: give seconds, from 0 to", "such as 90s", "or null"]),
        ("pack.shard_bytes=many", ["bytes, from 0 to 1 EiB or text such as 64MiB or 2GB (got "]),
        ("dataset.reader=4", ["give a mapping as {_target_: my_package.Name, argument: 1} or"]),
    ],
)  # fmt: skip
def test_what_a_key_takes_is_told_in_plain_words(override: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("digits", [override])
    for word in words:
        assert word in str(caught.value)


RECIPE = {"dataset": {"name": "d", "source": "/data"}, "model": {"_target_": "a.B", "width": 3}}
SITE = {"folder": "/s", "roles": {"cpu": {}}, "tiers": [{"name": "t", "folder": "/t"}]}


@cache
def validator(kind: str) -> Draft202012Validator:
    schema = json_schema(kind)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(kind: str, content: dict[str, Any]) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(content)]


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_the_built_in_files_are_valid(kind: str):
    files = available(f"{kind}s")
    assert files
    for file in files.values():
        assert problems(kind, yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"timeout": "30min"}},
        {"train": {"timeout": 90}},
        {"train": {"timeout": None}},
        {"pack": {"shard_bytes": "64MiB"}},
        {"trainer": {"max_epochs": "${oc.env:EPOCHS,3}"}},
        {"trainer": {"accelerator": "${oc.env:ACCELERATOR}"}},
        {"train": {"nodes": "${oc.env:NODES}"}},
        {"evaluate": None},
    ],
)
def test_what_may_be_written_is_valid(change: dict[str, Any]):
    assert problems("recipe", {**RECIPE, **change}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"trainr": {}},
        {"train": {"timeout": "soon"}},
        {"trainer": {"max_epochs": "three"}},
        {"trainer": {"max_epochs": 0}},
        {"trainer": {"accelerator": "tpu"}},
        {"model": {"width": 3}},
    ],
)
def test_mistakes_are_found(change: dict[str, Any]):
    assert problems("recipe", {**RECIPE, **change}) != []


def test_a_site_in_short():
    assert problems("site", SITE) == []
    assert problems("site", {**SITE, "tiers": []}) != []
