"""Whether Airflow is up: all components report, and the DAGs are there."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 5.0
_COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")


def missing(url: str, dags: frozenset[str]) -> list[str]:
    """What is not there yet; empty when Airflow is up.

    Args:
        url: Address of the API server.
        dags: Ids of the DAGs that must be known.
    """
    try:
        health = _get(f"{url}/api/v2/monitor/health")
        unhealthy = unhealthy_components(health)
        if unhealthy:
            return unhealthy
        known = {dag["dag_id"] for dag in _get(f"{url}/api/v2/dags?limit=100")["dags"]}
    except (OSError, ValueError) as error:
        return [f"api-server ({error})"]
    return sorted(dags - known)


def unhealthy_components(health: Mapping[str, Any]) -> list[str]:
    """Components that do not report to be healthy.

    Args:
        health: Answer of Airflow's health endpoint.
    """
    return [name for name in _COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]


def _get(url: str) -> dict[str, Any]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=_TIMEOUT_S) as answer:
        content: dict[str, Any] = json.load(answer)
        return content
