"""The few calls to Airflow's public REST API that the command line makes."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.cli.airflow_server import Login
from headrace.errors import HeadraceError, StepError, UnknownNameError

_TIMEOUT_S = 30.0
_TOKEN = "/auth/token"
_DAGS = "/api/v2/dags?limit=100"
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""This machine's Airflow is never reached by way of a proxy."""


class AirflowBusyError(HeadraceError):
    """Airflow's API server did not answer in time; it may be busy or starting anew."""


class AirflowApi:
    """Airflow's REST API (v2) on this machine, at an address such as `http://127.0.0.1:8080`."""

    def __init__(self, base_url: str, login: Login) -> None:
        self._base_url = base_url.rstrip("/")
        self._login = login
        self._token = ""

    def trigger(self, dag_id: str, conf: Mapping[str, object]) -> str:
        """Trigger a DAG; the id of the DAG run.

        Raises:
            UnknownNameError: Airflow does not know the DAG (yet).
            StepError: Airflow refuses, with its reason.
        """
        body = {"logical_date": None, "conf": dict(conf)}
        answer = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        return str(answer["dag_run_id"])

    def dag_ids(self) -> frozenset[str]:
        """Ids of the DAGs that Airflow knows."""
        return frozenset(str(dag["dag_id"]) for dag in self._call("GET", _DAGS)["dags"])

    def health(self) -> dict[str, Any]:
        """How the components of Airflow are."""
        return self._call("GET", "/api/v2/monitor/health")

    def run_state(self, dag_id: str, run_id: str) -> str:
        """State of a DAG run: queued, running, success, failed."""
        return str(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}")["state"])

    def fail_run(self, dag_id: str, run_id: str) -> None:
        """Mark a DAG run as failed: nothing more of it is started but what cleans up."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}"
        self._call("PATCH", path, {"state": "failed"})

    def run_url(self, dag_id: str, run_id: str) -> str:
        """Page of a DAG run in the web UI."""
        return f"{self._base_url}/dags/{dag_id}/runs/{quote(run_id)}"

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        if not self._token and path != _TOKEN:
            who = {"username": self._login.user, "password": self._login.password}
            self._token = str(self._call("POST", _TOKEN, who)["access_token"])
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self._base_url + path,
            method=method,
            headers=headers,
            data=json.dumps(body).encode() if body is not None else None,
        )
        try:
            with _DIRECTLY.open(request, timeout=_TIMEOUT_S) as answer:
                content: dict[str, Any] = json.loads(answer.read() or b"{}")
                return content
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:2000]
            kind = UnknownNameError if error.code == 404 else StepError
            raise kind(f"Airflow answered {error.code} to {method} {path}: {reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise AirflowBusyError(f"Airflow did not answer {method} {path}: {error}") from error
