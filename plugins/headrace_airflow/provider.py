"""What Airflow is told about this package; imports nothing, as every Airflow process reads it."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Name, version and extra links of the package, for the entry point of Airflow providers."""
    return {
        "package-name": "headrace",
        "name": "headrace",
        "description": "From raw samples to evaluated models on Dask leases.",
        "versions": ["0.1.0"],
        "extra-links": [
            "headrace_airflow.run_operators.DaskDashboardLink",
            "headrace_airflow.run_operators.RunPageLink",
        ],
    }
