"""Options of a backend that another package adds stand in roles under its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SiteError, UserError
from headrace.recipe.backend import backend_of, option_blocks
from headrace.recipe.load import parse
from headrace.recipe.schema import json_schema
from headrace.recipe.site import Role, Site
from support.added_packages import found_in, install

_TOY = '''
from headrace.recipe.backend import Backend
from headrace.record import Record


class Options(Record):
    """Boxes of a toy cloud."""

    region: str
    """Where they are."""
    boxes: int = 1
    """How many."""


class Toy(Backend):
    options = Options
'''


@pytest.fixture(autouse=True)
def toy(tmp_path: Path) -> Iterator[None]:
    """A package that adds backend `toy`."""
    folder = tmp_path / "site-packages"
    install(folder, "headrace_toy", _TOY, "[headrace.backends]\ntoy = headrace_toy:Toy\n")
    with found_in(folder):
        yield


def test_unknown_backend_names_the_valid_ones():
    with pytest.raises(SiteError, match=r"no backend 'lokal'\n.*'local'"):
        backend_of("lokal")


def test_they_are_a_record_of_its_model_and_travel_with_the_role():
    role = Role(backend="toy", toy={"region": "here"})
    assert role.own_options == backend_of("toy").options(region="here")
    assert Role.model_validate_json(role.model_dump_json()) == role
    assert Role(backend="slurm").own_options is None
    assert Role(backend="slurm", toy=None) == Role(backend="slurm")


@pytest.mark.parametrize(
    ("role", "told", "hint"),
    [
        (
            {"backend": "toy", "toy": {"regio": "x"}},
            "unknown key 'roles.gpu.toy.regio'",
            "'region'",
        ),
        ({"backend": "toy", "toy": {}}, "the key 'roles.gpu.toy.region' is missing", "takes text"),
        (
            {"backend": "toy", "toy": {"region": "x", "boxes": "many"}},
            "roles.gpu.toy.boxes: give an integer (got 'many')",
            "",
        ),
        ({"backend": "slurm", "toy": {"region": "x"}}, "go together; write both or neither", ""),
        ({"backend": "slurm", "slurm": {}}, "unknown key 'roles.gpu.slurm'", ""),
        ({"nods": 2}, "unknown key 'roles.gpu.nods'", "Did you mean 'nodes'"),
        ({"nods": None}, "unknown key 'roles.gpu.nods'", "Did you mean 'nodes'"),
    ],
)
def test_errors_are_told_as_those_of_any_key(role: dict[str, Any], told: str, hint: str):
    content = {"name": "s", "folder": "/f", "tiers": [{"name": "t", "folder": "/t"}]}
    with pytest.raises(SiteError) as caught:
        parse(Site, {**content, "roles": {"gpu": role}}, "s.yaml")
    assert told in caught.value.what
    assert hint in caught.value.hint


def test_the_schema_knows_them():
    found = json_schema("site")["$defs"]
    block = found["Role"]["properties"]["toy"]
    assert block["description"] == "Boxes of a toy cloud."
    (reference,) = (each["$ref"] for each in block["anyOf"] if "$ref" in each)
    options = found[reference.rpartition("/")[2]]
    assert options["properties"]["region"]["description"] == "Where they are."
    assert found["Role"]["additionalProperties"] is False


def test_a_package_that_cannot_be_loaded_keeps_no_other_site_from_being_read(tmp_path: Path):
    module = tmp_path / "site-packages" / "headrace_toy.py"
    module.write_text("import no_such_module\n")
    assert Role(backend="slurm", nodes=2).nodes == 2
    assert "toy" not in option_blocks()
    with pytest.raises(UserError, match=r"'toy' of headrace[.]backends cannot be loaded"):
        Role(backend="toy")
