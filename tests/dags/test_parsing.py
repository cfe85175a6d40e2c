"""Parsing the DAG files is cheap, as Airflow does it all the time and before each task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_DAGS = Path(__file__).parents[2] / "dags"

_PARSE = """
import json, sys, time
import airflow.sdk, airflow.triggers.base
from airflow.dag_processing.dagbag import DagBag
begin = time.process_time()
bag = DagBag(dag_folder=sys.argv[1], bundle_name="headrace")
print(json.dumps({
    "cpu_s": time.process_time() - begin,
    "dags": sorted(bag.dags),
    "modules": sorted(sys.modules),
}))
"""

_HEAVY = {"torch", "lightning", "dask", "distributed", "h5py", "sklearn", "matplotlib"}


def test_parsing_all_dags_is_quick_and_imports_nothing_heavy():
    """Less than a second of computing beyond Airflow's own imports."""
    command = [sys.executable, "-c", _PARSE, str(_DAGS)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert len(seen["dags"]) == 3
    assert _HEAVY.isdisjoint(seen["modules"])
    assert seen["cpu_s"] < 1.0


def test_provider_info_needs_no_airflow():
    """Every Airflow process reads it at its start."""
    code = (
        "import sys; from headrace_airflow.provider import get_provider_info as f; "
        "print(f()['package-name'], 'airflow' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["headrace", "False"]
