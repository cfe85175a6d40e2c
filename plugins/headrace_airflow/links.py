"""Links that the UI shows beside a task."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink, BaseXCom

DASHBOARD_KEY = "dashboard_url"
"""XCom key of the Dask dashboard's address."""

FOLDER_KEY = "folder_url"
"""XCom key of the address of the run's folder or report."""


class DaskDashboardLink(BaseOperatorLink):  # type: ignore[misc]
    """The Dask dashboard of the lease that the task uses."""

    name = "Dask dashboard"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Address of the dashboard; empty until the lease is ready."""
        return _link(ti_key, DASHBOARD_KEY)


class RunFolderLink(BaseOperatorLink):  # type: ignore[misc]
    """The run's folder, or the report once there is one, as a `file://` address to copy."""

    name = "Run folder or report"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Address of the folder or file; empty until it is known."""
        return _link(ti_key, FOLDER_KEY)


def _link(ti_key: Any, key: str) -> str:
    value = BaseXCom.get_value(ti_key=ti_key, key=key)
    return str(value) if value else ""
