"""A headless Chromium for tests; it can reach this machine and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Error, Page, Request, expect, sync_playwright

from headrace.cli.airflow_server import Credentials

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

_TIMEOUT_MS = 60_000
"""Most time for anything on a page; a busy machine needs a part of it."""


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page; the test fails when something on it asked another host than 127.0.0.1."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is missing; `make system-packages` installs it")
    strangers: list[str] = []

    def note(url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")):
            strangers.append(url)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1400})
        page.set_default_timeout(_TIMEOUT_MS)
        expect.set_options(timeout=_TIMEOUT_MS)
        page.on("request", lambda request: note(request.url))
        yield page
        browser.close()
    assert strangers == []


NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""How requests fail while other tests make or remove network interfaces of this machine."""


def load(page: Page, address: str) -> None:
    """Open an address, and once more if the network changed before all of it was there."""
    changed: list[str] = []

    def note(request: Request) -> None:
        if NETWORK_CHANGED in (request.failure or ""):
            changed.append(request.url)

    page.on("requestfailed", note)
    try:
        page.goto(address)
    except Error:
        if not changed:
            raise
    finally:
        page.remove_listener("requestfailed", note)
    if changed:
        page.goto(address)


def log_in(page: Page, url: str, login: Credentials) -> None:
    """Into Airflow, as a user does who was shown name and password."""
    page.goto(url)
    page.locator("[name=username]").fill(login.user)
    page.locator("[name=password]").fill(login.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
