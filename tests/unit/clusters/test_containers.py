"""Commands in containers as text; Charliecloud's really runs in tests/integration."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clusters.containers import python_of, wrap
from headrace.recipe.batch import Container

COMMAND = ("python3", "-m", "x")


@pytest.mark.parametrize(
    ("container", "num_gpus", "expected"),
    [
        ({"runtime": "none"}, 2, "python3 -m x"),
        (
            {"runtime": "apptainer"},
            2,
            "apptainer exec --nv --bind=/shared --bind=/local/me img env A=1 python3 -m x",
        ),
        (
            {"runtime": "apptainer", "gpus": "amd", "options": ("--cleanenv",), "env": {}},
            1,
            "apptainer exec --rocm --bind=/shared --bind=/local/me --cleanenv img python3 -m x",
        ),
        (
            {"runtime": "apptainer", "binds": ("/opt", "/nvme:/local/me")},
            0,
            "apptainer exec --bind=/opt --bind=/nvme:/local/me --bind=/shared img env A=1 "
            "python3 -m x",
        ),
        (
            {"runtime": "charliecloud"},
            2,
            "ch-run --bind=/shared --bind=/local/me img -- env A=1 python3 -m x",
        ),
    ],
)
def test_commands(container: dict[str, Any], num_gpus: int, expected: str):
    """pains 38: the prefix of a container, its GPUs and its binds."""
    asked = Container(**{"image": "img", "env": {"A": "1"}, **container})
    folders = ("/shared", "/local/me", "/dev/shm/me")
    assert " ".join(wrap(asked, COMMAND, folders, num_gpus)) == expected


def test_no_container_changes_nothing():
    assert wrap(None, COMMAND, ("/shared",), 2) == COMMAND
    assert python_of(None, "/venv/bin/python") == "/venv/bin/python"
    assert python_of(Container(runtime="none", image="img"), "/py") == "/py"
    assert python_of(Container(runtime="apptainer", image="img"), "/py") == "python3"
