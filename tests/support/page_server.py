"""headrace's pages by their real app on a port of their own, without Airflow's login."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from airflow.api_fastapi.app import init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI

from headrace_pages import access
from headrace_pages.app import app
from support.ports import find_free_port
from support.waiting import wait_until


def open_to_ada() -> dict[Any, Any]:
    """Dependencies of the app by what they are replaced with: ada may see and do everything."""
    ada = SimpleAuthManagerUser(username="ada", role="ADMIN")
    values = {
        access.reads.dependency: None, access.acts.dependency: None, access.get_user: ada,
        access.visible_sites: None, access.may_act: True,
    }  # fmt: skip
    return {name: lambda value=value: value for name, value in values.items()}


@contextmanager
def serving() -> Iterator[str]:
    """Serve the pages to ada; gives their address."""
    outer, port = FastAPI(), find_free_port()
    outer.mount("/headrace", app)
    server = uvicorn.Server(uvicorn.Config(outer, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    app.dependency_overrides |= open_to_ada()
    init_auth_manager()
    thread.start()
    try:
        wait_until(lambda: server.started, 60, "the pages are served")
        yield f"http://127.0.0.1:{port}/headrace/"
    finally:
        server.should_exit = True
        thread.join()
        app.dependency_overrides.clear()
