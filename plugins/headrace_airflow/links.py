"""Links that the UI shows beside a task. It shows `http` addresses only: files are in the logs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink, BaseXCom

DASHBOARD_KEY = "dashboard_url"
"""XCom key of the Dask dashboard's address."""


class DaskDashboardLink(BaseOperatorLink):  # type: ignore[misc]
    """The Dask dashboard of the lease that the task uses."""

    name = "Dask dashboard"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Address of the dashboard; empty until the lease is ready."""
        value = BaseXCom.get_value(ti_key=ti_key, key=DASHBOARD_KEY)
        return str(value) if value else ""
