"""The plugin that Airflow loads: links of headrace's operators, and one middleware.

Loading it also imports the operators: the scheduler's workers are forked from a process that has
loaded its plugins, and each task then starts a second sooner.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

import headrace_airflow.operators
import headrace_airflow.run_operators  # noqa: F401, for the tasks, see above
from headrace_airflow.links import DaskDashboardLink
from headrace_airflow.one_writer import OneWriter


class HeadracePlugin(AirflowPlugin):  # type: ignore[misc]
    """Registers the links, so that the UI can show them, and the middleware for SQLite."""

    name = "headrace"
    operator_extra_links = (DaskDashboardLink(),)
    fastapi_root_middlewares = (
        {"middleware": OneWriter, "name": "headrace: one writer on SQLite"},
    )
