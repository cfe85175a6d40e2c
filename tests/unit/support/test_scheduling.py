"""Tests that share an Airflow come to the same test process; the order of all files."""

import pytest

from support.airflow_service import AirflowService
from support.scheduling import LONG, SharedAirflowScheduling, place
from support.sources import ROOT


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/chaos/airflow/test_kills.py::test_x[a/airflow/b]", "tests/chaos/airflow"),
        ("tests/integration/airflow/test_trigger_form.py::test_x", "tests/integration/airflow"),
        ("tests/integration/test_wheel.py::test_x[airflow]", "tests/integration/test_wheel.py"),
        ("tests/unit/airflow.py::TestX::test_x", "tests/unit/airflow.py"),
        ("tests/contract/test_a.py::TestX::test_x", "tests/contract/test_a.py::TestX"),
        ("tests/contract/test_a.py::test_x[a]", "tests/contract/test_a.py"),
    ],
)
def test_groups(nodeid: str, group: str) -> None:
    assert SharedAirflowScheduling._split_scope(None, nodeid) == group  # type: ignore[arg-type]


def test_what_asks_for_the_shared_airflow_lies_in_such_a_folder() -> None:
    asking = {
        str(file.relative_to(ROOT))
        for folder in ("integration", "chaos", "docs", "benchmarks", "dags", "contract", "unit")
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
        if f"airflow_service: {AirflowService.__name__}" in file.read_text()
    }
    assert asking
    assert [file for file in asking if "/airflow/" not in file] == []


def test_the_order_of_files() -> None:
    """Those that share an Airflow come before any other whole job, and long ones next."""
    files = [
        "tests/architecture/test_layers.py",
        "tests/contract/test_backend_contract.py",
        "tests/unit/airflow.py",
        "tests/dags/test_parsing.py",
        "tests/chaos/airflow/test_kills.py",
        "tests/integration/airflow/test_trigger_form.py",
        *LONG,
        "tests/chaos/slurm/test_jobs.py",
        "tests/docs/test_links.py",
        "tests/integration/test_wheel.py",
        "elsewhere/test_it.py",
    ]
    mixed = dict.fromkeys(reversed(files))
    assert sorted(mixed, key=place)[:-2] == files[:-2]
    assert [file for file in LONG if not (ROOT / file).is_file()] == []
