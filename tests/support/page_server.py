"""headrace's pages by their real app on a port of their own, without Airflow's login."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi.app import init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from playwright.sync_api import Page, expect

from headrace_pages import access
from headrace_pages.app import app
from support.browser import load
from support.ports import find_free_port
from support.waiting import wait_until

Visit = Callable[[str], None]


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


@pytest.fixture
def visit(page: Page, headrace_home: Path) -> Iterator[Visit]:
    """Opens a page by its address; the test ends without an error of its scripts."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_viewport_size({"width": 1280, "height": 900})
    with serving() as url:

        def open_page(address: str) -> None:
            load(page, f"{url}{address}")
            expect(page.locator(".loading")).to_have_count(0)
            expect(page.get_by_role("heading", level=1)).not_to_be_empty()

        yield open_page
        page.goto("about:blank")
    assert errors == []
