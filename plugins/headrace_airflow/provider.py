"""Package data for Airflow; imports nothing, because every Airflow process reads it."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return name, version and extra links of the package, for Airflow's entry point."""
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
