"""Airflow for tests of DAGs, operators and triggers: its own empty home, no service."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_FOLDER = tempfile.TemporaryDirectory(prefix="headrace-airflow-")
_HOME = _FOLDER.name

# Airflow reads its settings at its first import, so they must be there before any test module
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
)

import pytest  # noqa: E402
from airflow.dag_processing.dagbag import DagBag  # noqa: E402

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(scope="session")
def dag_bag() -> DagBag:
    """All DAGs of the repository, parsed once."""
    return DagBag(dag_folder=str(DAGS), bundle_name="headrace")
