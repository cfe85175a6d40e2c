"""Workflow files of the forge: rights are least, and each step's command exists here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.sources import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(path.read_text())
    return content


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_ends(path: Path) -> None:
    """Only the job that publishes has a further right: to name itself to PyPI."""
    content = workflow(path)
    assert content["permissions"] == {"contents": "read"}
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 180
        expected = {"id-token": "write"} if name == "publish" else None
        assert job.get("permissions") == expected
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@[\w./-]+", step.get("uses", "a/b@v1"))
            if str(step.get("uses")).startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}
    assert "${{ secrets." not in path.read_text()


def test_commands_are_those_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.M))
    known = {word for each in targets for word in each.split()}
    ci = workflow(ROOT / ".github/workflows/ci.yml")["jobs"]
    made = [
        x["run"].split()[1]
        for job in ci.values()
        for x in job["steps"]
        if "make " in str(x.get("run")) and "apt-get" not in x["run"]
    ]
    made = [each for each in made if "$" not in each] + ci["static"]["strategy"]["matrix"]["target"]
    assert set(made) <= known
    assert (ROOT / ".ci/run").exists()
    assert (ROOT / "scripts/real/install.sh").exists()


def test_versions_of_python_are_those_of_the_project() -> None:
    ci = workflow(ROOT / ".github/workflows/ci.yml")["jobs"]
    lowest, beyond = re.findall(
        r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()
    )[0]
    expected = [f"3.{minor}" for minor in range(int(lowest), int(beyond))]
    assert ci["test"]["strategy"]["matrix"]["python"] == expected
