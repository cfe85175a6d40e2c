"""The plugin that Airflow loads: the links of headrace's operators."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from headrace_airflow.links import DaskDashboardLink, RunFolderLink


class HeadracePlugin(AirflowPlugin):  # type: ignore[misc]
    """Registers the links, so that the UI can show them."""

    name = "headrace"
    operator_extra_links = (DaskDashboardLink(), RunFolderLink())
