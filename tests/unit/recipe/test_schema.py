"""The JSON schema agrees with what headrace accepts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from headrace.recipe.load import available
from headrace.recipe.schema import json_schema

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
