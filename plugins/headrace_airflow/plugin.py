"""The plugin that Airflow loads: headrace's pages, links of its operators, one middleware.

Loading it also imports the operators: the scheduler's workers are forked from a process that has
loaded its plugins, and each task then starts a second sooner.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

import headrace_airflow.operators  # noqa: F401, for the tasks, see above
from headrace_airflow import listener
from headrace_airflow.run_operators import RUN_TAB, DaskDashboardLink, RunPageLink

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = "/headrace/"
"""Requests to the pages write nothing of Airflow's, and may take a while."""


class OneWriter:
    """Middleware (ASGI): on SQLite, requests that write are served one after another.

    Airflow's API server records a user's action on its event loop (`log_action` commits there).
    When just then another request holds SQLite's one write lock and needs that same loop to give it
    back, both wait for the lock's time limit and one of them fails with "database is locked". One
    writing request at a time cannot get there. On other databases nothing is changed.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._needed = conf.get("database", "sql_alchemy_conn").startswith("sqlite")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request; a writing one waits for those before it."""
        is_writing = scope["type"] == "http" and scope["method"] not in _READING
        if self._needed and is_writing and _OWN not in scope["path"]:
            async with self._lock:
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _WhenAsked:
    """The app of the pages; only the API server asks for it, the others need not load FastAPI."""

    def __get__(self, plugin: object, kind: type) -> list[dict[str, Any]]:
        from headrace_airflow.web.app import app

        return [{"app": app, "url_prefix": "/headrace", "name": "headrace"}]


_RUN = "headrace/run/?dag_id={DAG_ID}&dag_run_id={RUN_ID}"
_VIEWS = (
    ("nav", "headrace", "headrace/"),
    ("dag_run", RUN_TAB, _RUN),
    ("task_instance", "headrace-task", f"{_RUN}&task_id={{TASK_ID}}"),
)
"""Where in Airflow a page is shown, under which route, and its address below Airflow's own."""


class HeadracePlugin(AirflowPlugin):  # type: ignore[misc]
    """Registers pages, links, the listener, and the middleware for SQLite."""

    name = "headrace"
    fastapi_apps = _WhenAsked()
    external_views = [  # a list, as Airflow takes out what is there twice
        {
            "name": "headrace",
            "href": href,
            "destination": place,
            "url_route": route,
            "nav_top_level": True,
        }
        for place, route, href in _VIEWS
    ]
    operator_extra_links = (DaskDashboardLink(), RunPageLink())
    listeners = (listener,)
    fastapi_root_middlewares = (
        {"middleware": OneWriter, "name": "headrace: one writer on SQLite"},
    )
