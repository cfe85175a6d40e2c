"""Which tests one of several test processes (pytest-xdist) must run, and in which order."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling

AIRFLOW = "airflow"
"""Folders of this name hold tests that share an Airflow, the one of the process they run in."""

CONTRACT = "contract"
"""The folder of tests whose classes are backends, which have nothing in common."""

_FOLDERS = ("architecture", CONTRACT, "satellites", "unit", "dags", "chaos", "docs", "benchmarks")
"""Single parts first, and of those the ones that take longest."""

LONG = (
    "tests/chaos/slurm/test_gangs.py",
    "tests/docs/test_examples.py",
    "tests/integration/test_run_on_slurm.py",
    "tests/chaos/test_interrupted_commands.py",
    "tests/integration/test_run_on_ec2.py",
    "tests/chaos/test_campaign.py",
    "tests/integration/test_bad_input.py",
    "tests/integration/test_recipes.py",
    "tests/integration/test_other_batch_systems.py",
    "tests/integration/training/test_launchers.py",
    "tests/integration/test_parts_of_a_gang.py",
    "tests/integration/training/test_resume.py",
)
"""Files that take more than a minute, the longest first: several processes end together then."""


def place(file: str) -> tuple[int, int, int]:
    """Sorts test files: those of single parts, those that share an Airflow, long ones, the rest.

    Those that share an Airflow begin before any other whole job, so that each folder of them gets a
    process of its own and none comes back to an Airflow that has ended.

    Args:
        file: Path from the root of the repository, with slashes.
    """
    folder = (*PurePosixPath(file).parts, "", "")[1]
    group = _FOLDERS.index(folder) if folder in _FOLDERS else len(_FOLDERS)
    if group < _FOLDERS.index("chaos"):
        return 0, group, 0
    if _airflow_folder(file):
        return 1, group, 0
    return 2, LONG.index(file) if file in LONG else len(LONG), group


def shares_airflow(nodeid: str) -> bool:
    """Whether a test is one of those that share an Airflow."""
    return bool(_airflow_folder(_file(nodeid)))


def _airflow_folder(file: str) -> str:
    before, found, _after = file.rpartition(f"/{AIRFLOW}/")
    return f"{before}/{AIRFLOW}" if found else ""


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


class SharedAirflowScheduling(LoadFileScheduling):
    """A file stays in one process, for its module fixtures; so does a folder `AIRFLOW`.

    Of contracts each class does. Groups begin in the order of the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        if f"/{CONTRACT}/" in _file(nodeid):
            return "::".join(nodeid.partition("[")[0].split("::")[:-1])
        return _airflow_folder(_file(nodeid)) or _file(nodeid)


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return SharedAirflowScheduling(config, log)
