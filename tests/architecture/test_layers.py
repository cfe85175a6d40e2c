"""Layers: the contracts of `[tool.importlinter]` hold, and no new module escapes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.sources import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]

HOMES = {
    "dask": {"clusters"},
    "h5py": {"shards"},
    "sqlalchemy": {"ledger"},
    "torch": {"checkpoints", "data", "training", "evaluation", "examples"},
    "boto3": {"clusters", "objects"},
}
"""The only modules of headrace that may import a package by themselves."""


def modules_of_headrace() -> set[str]:
    """Packages and modules right below `headrace`."""
    folder = ROOT / "pipelines" / "headrace"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


def contract_about(package: str) -> dict[str, Any]:
    """The contract that says which of headrace's modules may import a package."""
    found = [
        contract
        for contract in CONFIG["contracts"]
        if contract["type"] == "forbidden"
        and package in contract["forbidden_modules"]
        and contract["source_modules"] != ["headrace_pages"]
    ]
    assert len(found) == 1
    return dict(found[0])


def test_contracts_hold():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(CONFIG['contracts'])} kept, 0 broken" in done.stdout


def test_every_module_has_its_layer():
    layers = next(each for each in CONFIG["contracts"] if each["type"] == "layers")
    named = {name for layer in layers["layers"] for name in re.split(r"\s*[|:]\s*", layer)}
    assert layers["exhaustive"] is True
    assert "exhaustive_ignores" not in layers
    assert named == modules_of_headrace()


@pytest.mark.parametrize("package", HOMES)
def test_heavy_packages_have_one_home(package: str):
    contract = contract_about(package)
    assert contract["source_modules"] == ["headrace", "headrace_airflow", "headrace_pages"]
    rooms = {each.partition(".** -> *")[0] for each in contract["ignore_imports"] if "**" in each}
    assert rooms == {f"headrace.{name}" for name in HOMES[package]}


def test_the_engine_never_imports_airflow():
    contract = contract_about("airflow")
    assert contract["source_modules"] == ["headrace"]
    assert "allow_indirect_imports" not in contract
