"""`make setup`: quiet the second time, done anew after an interruption, plain when it fails.

The script is the real one, and so are venv and pip; only the packages are tiny ones made here.
"""

from __future__ import annotations

import configparser
import fnmatch
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

BACKEND = '''
"""Builds the wheel of a package that has nothing but a command."""
from pathlib import Path
import zipfile

INFO = "headrace-0.1.0.dist-info"

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "headrace-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        wheel.writestr(f"{INFO}/METADATA",
            "Metadata-Version: 2.1\\nName: headrace\\nVersion: 0.1.0\\nProvides-Extra: dev\\n")
        wheel.writestr(f"{INFO}/WHEEL",
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{INFO}/entry_points.txt", "[console_scripts]\\nheadrace = os:getcwd\\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    return name
'''


class Checkout:
    """A checkout with the real script and tiny packages, and an index that has only those."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = os.environ["PATH"]
        (folder / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup.sh", folder / "scripts")
        self.write("pyproject.toml", PYPROJECT)
        self.write("backend.py", BACKEND)
        self.write("constraints.txt", "# pins\ntorch==1.0.0\n")
        self.offer_torch("1.0.0")

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)

    def offer_torch(self, version: str) -> None:
        wheels = self.folder / "wheels"
        wheels.mkdir(exist_ok=True)
        info = f"torch-{version}.dist-info"
        with zipfile.ZipFile(wheels / f"torch-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")

    def setup(self) -> subprocess.CompletedProcess[str]:
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder / "wheels")}
        return subprocess.run(
            ["/bin/bash", "scripts/setup.sh"],
            cwd=self.folder,
            env={"HOME": str(self.folder), "PATH": self.path, "PIP_CONFIG_FILE": "/dev/null"}
            | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def installed(self) -> bool:
        return (self.folder / ".venv/bin/headrace").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_a_second_run_says_nothing_and_a_change_is_installed(checkout):
    first = checkout.setup()
    assert first.returncode == 0, first.stderr
    assert "this takes 1 to 2 minutes on 2 cores" in first.stderr
    assert "PyTorch (torch==1.0.0)" in first.stderr
    assert checkout.installed()

    second = checkout.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")

    checkout.offer_torch("2.0.0")
    checkout.write("constraints.txt", "torch==2.0.0\n")
    third = checkout.setup()
    assert "PyTorch (torch==2.0.0)" in third.stderr
    assert "Virtual environment" not in third.stderr
    assert checkout.setup().stderr == ""


def test_uv_installs_with_the_settings_of_pip(checkout: Checkout):
    programs = checkout.folder / "bin"
    programs.mkdir()
    (programs / "uv").symlink_to(Path(sys.executable).parent / "uv")
    checkout.path = f"{programs}:{checkout.path}"
    checkout.write("constraints.txt", "torch==3.0.0\n")  # there is no such
    checkout.write("backend.py", BACKEND.replace("Provides", "Requires-Dist: torch\\nProvides"))
    failed = checkout.setup()
    assert failed.returncode == 1
    assert "by uv" in failed.stderr
    assert "torch==3.0.0" in failed.stderr

    checkout.write("constraints.txt", "torch==1.0.0\n")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert checkout.installed()
    assert list(checkout.folder.glob(".venv/lib/python*/site-packages/torch-1.0.0.dist-info"))
    assert checkout.setup().stderr == ""


def test_a_failed_install_tells_why_and_is_done_anew(checkout):
    checkout.write("constraints.txt", "torch==3.0.0\n")
    failed = checkout.setup()
    assert failed.returncode == 1
    assert "torch==3.0.0" in failed.stderr
    assert "the whole log: .venv/install.log" in failed.stderr
    (checkout.folder / ".venv" / "left-behind").touch()

    checkout.write("constraints.txt", "torch==1.0.0\n")
    again = checkout.setup()
    assert again.returncode == 0, again.stderr
    assert "An earlier install was interrupted; starting anew." in again.stderr
    assert checkout.installed()
    assert not (checkout.folder / ".venv" / "left-behind").exists()


def test_an_environment_made_by_hand_is_kept(checkout):
    subprocess.run(["python3", "-m", "venv", ".venv"], cwd=checkout.folder, check=True)
    (checkout.folder / ".venv" / "mine").touch()
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert checkout.installed()
    assert (checkout.folder / ".venv" / "mine").exists()


def test_without_a_python_that_has_venv_the_message_names_the_package(checkout, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "flock", "id", "rm", "sha256sum"):
        (programs / name).symlink_to(str(shutil.which(name)))
    checkout.path = str(programs)
    done = checkout.setup()
    assert done.returncode == 1
    assert "No Python 3.10 to 3.13 with 'venv' was found." in done.stderr
    assert "apt-get install python3-venv" in done.stderr


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
        ("headrace.forecast", "foresight"): "headrace_foresight.suite_order:ForecastOrder",
        ("headrace.commands", "probe"): "headrace_probes.commands:COMMANDS",
        ("headrace.steps", "probe"): "headrace_probes.probe_kind:PROBE",
        ("apache_airflow_provider", "provider_info"): "headrace_airflow.provider:get_provider_info",
        ("airflow.policy", "headrace"): "headrace_airflow.policy",
        ("airflow.plugins", "headrace"): "headrace_airflow.plugin:HeadracePlugin",
        ("airflow.plugins", "headrace_pages"): "headrace_pages.plugin:PagesPlugin",
        **{
            (f"{package}.callbacks_factory", "headrace"): "headrace.lightning_reports:callbacks"
            for package in ("lightning.pytorch", "pytorch_lightning")
        },
    }
    for target in found.values():
        module = target.partition(":")[0].replace(".", "/")
        assert f"{module}.py" in wheel.namelist()
