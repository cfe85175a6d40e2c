"""Parsing the DAG files is cheap, as Airflow does it all the time and before each task."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_DAGS = Path(__file__).parents[2] / "dags"

_PARSE = """
import json, sys
import airflow.sdk, airflow.triggers.base
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(dag_folder=sys.argv[1], bundle_name="headrace")
from headrace_pages.plugin import PagesPlugin
print(json.dumps({
    "dags": sorted(bag.dags),
    "all": sorted(sys.modules),
    "added": sorted(set(sys.modules) - before),
    "pages": [view["href"] for view in PagesPlugin.external_views],
}))
"""

_HEAVY = {
    *("torch", "lightning", "torchmetrics", "dask", "distributed", "h5py", "hdf5plugin", "numpy"),
    *("scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "s3fs", "botocore", "boto3"),
    *("aiobotocore", "obstore", "soundfile", "alembic", "fastapi"),
}

_LIGHT = {
    "headrace",
    "headrace_airflow",
    "headrace_pages",
    "headrace_probes",
    "airflow",
    "antlr4",
    "asgiref",
    "filelock",
    "omegaconf",
}
"""Packages that parsing may add to what Airflow imports by itself."""


def test_parsing_all_dags_imports_nothing_heavy():
    """Nothing that takes long, and of other packages only those that are known to be small."""
    command = [sys.executable, "-c", _PARSE, str(_DAGS)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert len(seen["dags"]) == 5
    assert {href.partition("/")[0] for href in seen["pages"]} == {"headrace"}  # behind a base path
    assert _HEAVY.isdisjoint(_packages(seen["all"]))
    own = {name for name in seen["added"] if name.startswith("unusual_prefix_")}  # the DAG files
    assert len(own) == 5
    assert _packages(seen["added"]) - _packages(own) - sys.stdlib_module_names <= _LIGHT


def _packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


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
