"""The plugin that Airflow loads: links of its operators, the listener, one middleware.

Loading it also imports the operators: the scheduler's workers are forked from a process that has
loaded its plugins, so each task starts a second sooner.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

import headrace_airflow.operators  # noqa: F401, for the tasks, see above
from headrace_airflow import listener
from headrace_airflow.run_operators import DaskDashboardLink, RunPageLink

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = "/headrace/"
"""Paths of the pages: their requests write nothing of Airflow's, and may take long."""


class OneWriter:
    """Middleware (ASGI): on SQLite, requests that write are served one after another.

    Airflow's API server records a user's action on its event loop (`log_action` commits there).
    If at that moment another request holds SQLite's one write lock and needs the same loop to
    release it, both wait for the lock's time limit, and one fails with "database is locked". With
    one writing request at a time this cannot happen. Other databases are not affected.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._needed = conf.get("database", "sql_alchemy_conn").startswith("sqlite")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request; a writing one waits for the earlier ones."""
        is_writing = scope["type"] == "http" and scope["method"] not in _READING
        if self._needed and is_writing and _OWN not in scope["path"]:
            async with self._lock:
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class HeadracePlugin(AirflowPlugin):  # type: ignore[misc]
    """Registers links, the listener, and the middleware for SQLite."""

    name = "headrace"
    operator_extra_links = (DaskDashboardLink(), RunPageLink())
    listeners = (listener,)
    fastapi_root_middlewares = (
        {"middleware": OneWriter, "name": "headrace: one writer on SQLite"},
    )
