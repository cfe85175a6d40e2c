"""The wheel carries all that the source tree has, and the entry points that Airflow looks for."""

from __future__ import annotations

import configparser
import fnmatch
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TREES = {
    "pipelines/headrace": "headrace",
    "pipelines/headrace_bench": "headrace_bench",
    "pipelines/headrace_ec2": "headrace_ec2",
    "pipelines/headrace_foresight": "headrace_foresight",
    "pipelines/headrace_probes": "headrace_probes",
    "pipelines/headrace_queues": "headrace_queues",
    "plugins/headrace_airflow": "headrace_airflow",
    "plugins/headrace_pages": "headrace_pages",
    "dags": "headrace_airflow/dags",
}
"""Folder of the source tree: folder in the wheel."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("headrace-*-py3-none-any.whl")
    return zipfile.ZipFile(built)


@pytest.mark.parametrize("source", TREES)
def test_every_tracked_file_is_in_the_wheel_once(wheel, source):
    done = subprocess.run(
        ["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = {f"{TREES[source]}/{Path(name).relative_to(source)}" for name in done.stdout.split()}
    names = wheel.namelist()
    assert expected, f"{source} has no files"
    assert sorted(expected - set(names)) == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "pattern",
    [
        "headrace/recipe/builtin/recipes/digits.yaml",
        "headrace/recipe/builtin/sites/laptop.yaml",
        "headrace/ledger/*/versions/*.py",
        "headrace/report/*.jinja",
        "headrace_ec2/*.jinja",
        "headrace_queues/*.jinja",
        "headrace_pages/static/js/*.js",
        "headrace_airflow/dags/headrace_*.py",
        "headrace-*.dist-info/licenses/LICENSE",
    ],
)
def test_files_that_are_not_imported_are_in_the_wheel(wheel, pattern):
    assert fnmatch.filter(wheel.namelist(), pattern), f"nothing in the wheel is like {pattern}"


def test_nothing_else_is_in_the_wheel(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    (info,) = (name for name in tops if name.endswith(".dist-info"))
    assert tops == {name for name in TREES.values() if "/" not in name} | {info}
    assert not [name for name in wheel.namelist() if "__pycache__" in name]


def test_entry_points_name_what_exists(wheel):
    parser = configparser.ConfigParser()
    (path,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    parser.read_string(wheel.read(path).decode())
    found = {
        (group, name): parser[group][name] for group in parser.sections() for name in parser[group]
    }
    assert found == {
        ("console_scripts", "headrace"): "headrace.cli.app:main",
        ("headrace.accounts", "foresight"): "headrace_foresight.accounts:Foresight",
        ("headrace.backends", "ec2"): "headrace_ec2.backend:Ec2",
        ("headrace.backends", "lsf"): "headrace_queues.lsf:Lsf",
        ("headrace.backends", "pbs"): "headrace_queues.pbs:Pbs",
        ("headrace.backends", "sge"): "headrace_queues.sge:Sge",
        ("headrace.commands", "bench"): "headrace_bench.commands:COMMANDS",
        ("headrace.commands", "cloud"): "headrace_ec2.commands:COMMANDS",
        ("headrace.commands", "foresight"): "headrace_foresight.commands:COMMANDS",
        ("headrace.forecast", "foresight"): "headrace_foresight.trial_forecast:ForecastOrder",
        ("headrace.commands", "probe"): "headrace_probes.commands:COMMANDS",
        ("headrace.steps", "probe"): "headrace_probes.probe_kind:PROBE",
        ("apache_airflow_provider", "provider_info"): "headrace_airflow.provider:get_provider_info",
        ("airflow.plugins", "headrace"): "headrace_airflow.plugin:HeadracePlugin",
        ("airflow.plugins", "headrace_pages"): "headrace_pages.plugin:PagesPlugin",
    }
    for target in found.values():
        module = target.partition(":")[0].replace(".", "/")
        assert f"{module}.py" in wheel.namelist()
