"""On SQLite, requests that write to Airflow's database are served one after another.

Airflow's API server records a user's action on its event loop (`log_action` commits there). When
just then another request holds SQLite's one write lock and needs that same loop to give it back,
both wait for the lock's time limit and one of them fails with "database is locked". One writing
request at a time cannot get there. On other databases nothing is changed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.configuration import conf

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class OneWriter:
    """Middleware (ASGI) around the whole API server.

    Args:
        app: The application.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._needed = conf.get("database", "sql_alchemy_conn").startswith("sqlite")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request; a writing one waits for those before it."""
        is_writing = scope["type"] == "http" and scope["method"] not in _READING
        if self._needed and is_writing:
            async with self._lock:
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)
