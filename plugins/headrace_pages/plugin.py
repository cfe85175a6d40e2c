"""The plugin of headrace's pages; Airflow loads it beside the plugin of the operators."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from headrace_airflow.run_operators import RUN_TAB


class _WhenAsked:
    """The pages' app; only the API server reads it, so other processes do not load FastAPI."""

    def __get__(self, plugin: object, kind: type) -> list[dict[str, Any]]:
        from headrace_pages.app import app

        return [{"app": app, "url_prefix": "/headrace", "name": "headrace"}]


_RUN = "headrace/run/?dag_id={DAG_ID}&dag_run_id={RUN_ID}"
_VIEWS = (
    ("nav", "headrace", "headrace/"),
    ("dag_run", RUN_TAB, _RUN),
    ("task_instance", "headrace-task", f"{_RUN}&task_id={{TASK_ID}}"),
)
"""Place in Airflow of each page, its route, and its address below Airflow's own."""


class PagesPlugin(AirflowPlugin):  # type: ignore[misc]
    """Registers the pages, and their places in Airflow."""

    name = "headrace_pages"
    fastapi_apps = _WhenAsked()
    external_views = [  # a list, because Airflow removes duplicates
        {
            "name": "headrace",
            "href": href,
            "destination": place,
            "url_route": route,
            "nav_top_level": True,
        }
        for place, route, href in _VIEWS
    ]
