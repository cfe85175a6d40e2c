"""Whether Airflow is up: all components report, and the DAGs are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.cli.airflow_api import AirflowApi
from headrace.errors import HeadraceError

_COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")


def missing(api: AirflowApi, dags: frozenset[str]) -> list[str]:
    """What is not there yet; empty when Airflow is up.

    Args:
        api: The API server.
        dags: Ids of the DAGs that must be known.
    """
    try:
        unhealthy = unhealthy_components(api.health())
        if unhealthy:
            return unhealthy
        return sorted(dags - api.dag_ids())
    except (HeadraceError, ValueError) as error:
        return [f"api-server ({error})"]


def unhealthy_components(health: Mapping[str, Any]) -> list[str]:
    """Components that do not report to be healthy.

    Args:
        health: Answer of Airflow's health endpoint.
    """
    return [name for name in _COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]
